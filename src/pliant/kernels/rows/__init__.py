"""Element-wise maps, reductions, and kernels over rows."""
