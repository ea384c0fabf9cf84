"""The Open Inference Protocol's requests and responses."""
