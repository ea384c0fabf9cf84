"""The functions of `pliant.system` on Linux, by subject."""
