"""Tests of what is seen of a node."""
