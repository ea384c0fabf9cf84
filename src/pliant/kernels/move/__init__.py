"""Kernels for copies, gathers, scatters and resampling."""
