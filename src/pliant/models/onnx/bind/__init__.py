"""Turn an ONNX model into graphs of known shapes: bind, fold, and divide at data-dependent shapes."""
