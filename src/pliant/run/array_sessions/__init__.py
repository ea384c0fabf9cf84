"""Sessions on arrays: ONNX models, compiled directories, recurrent models, and what their plans print."""
