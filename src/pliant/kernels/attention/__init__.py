"""Fused attention and rotary embedding."""
