"""Lowering rules: the kernel calls of each operator, one module per operator family."""
