"""The verbs of `pliant cluster`, and `pliant worker`."""
