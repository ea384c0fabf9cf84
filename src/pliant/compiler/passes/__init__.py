"""Passes over a graph that preserve its outputs, one pass a file."""
