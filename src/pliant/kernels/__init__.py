"""Kernels generated as LLVM IR, one family per folder."""
