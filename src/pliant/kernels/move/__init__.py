"""Kernels that copy, gather, scatter and resample."""
