"""Compile IR, cache and load the code, and run it with a pool of threads."""
