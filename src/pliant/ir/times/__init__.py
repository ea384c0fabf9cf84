"""Answer times by input length: curves, fits, bounds, and levels of accuracy against time."""
