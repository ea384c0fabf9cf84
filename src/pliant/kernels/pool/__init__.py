"""Pooling kernels: by rows, by windows, and for several small planes together."""
