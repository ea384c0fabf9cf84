"""Encode weights as nested bit-planes."""
