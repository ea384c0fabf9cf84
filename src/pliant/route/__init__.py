"""Which device answers an input best (CRIME): curves, fits, links, choices."""
