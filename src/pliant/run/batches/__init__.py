"""Feeds that run together: padded to sizes that are there, one on the other, or side by side."""
