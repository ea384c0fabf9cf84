"""Compiled models on disk, and C."""
