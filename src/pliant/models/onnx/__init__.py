"""ONNX files, read, checked and bound to shapes."""
