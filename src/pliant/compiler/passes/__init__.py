"""Passes over a graph that leave its outputs as they are: one pass a file. Knows no kernel or memory."""
