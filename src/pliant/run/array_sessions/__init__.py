"""Sessions on arrays (ONNX models, compiled directories, recurrent models) and their printed plans."""
