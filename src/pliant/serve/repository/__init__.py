"""Models that a node loads and unloads while it runs."""
