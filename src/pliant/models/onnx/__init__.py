"""Read ONNX files, check them, and bind them to shapes."""
