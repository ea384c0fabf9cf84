"""Requests and responses of the Open Inference Protocol."""
