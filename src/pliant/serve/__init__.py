"""Serve models over HTTP and gRPC with the Open Inference Protocol, routed among nodes."""
