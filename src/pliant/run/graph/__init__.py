"""Sessions on ONNX and recurrent models."""
