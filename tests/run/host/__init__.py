"""Operators and loops in numpy."""
