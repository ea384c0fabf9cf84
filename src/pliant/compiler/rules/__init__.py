"""Lowering: which kernels an operator calls, one family of operators a module."""
