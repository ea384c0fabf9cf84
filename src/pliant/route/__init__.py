"""Choose the device that answers an input best (CRIME): curves, fits, links, choices."""
