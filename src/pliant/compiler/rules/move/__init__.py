"""Lowering of operators that only move data."""
