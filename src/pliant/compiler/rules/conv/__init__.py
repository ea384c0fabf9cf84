"""Lowering of convolutions, pooling and resampling."""
