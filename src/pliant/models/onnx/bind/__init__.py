"""From an ONNX file to graphs of known shapes: bound, folded, and cut where data decides."""
