"""Transformer encoders, one family a file: their configurations, their weights' names, and their two ends."""
