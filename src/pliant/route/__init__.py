"""Which device answers an input best (CRIME): curves, fits, links, choices. Runs and sends nothing."""
