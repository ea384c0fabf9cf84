"""Kernels of pools: by rows, by windows, and small planes together."""
