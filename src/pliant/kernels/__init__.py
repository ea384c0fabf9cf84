"""Kernels generated as LLVM IR, one family a folder."""
