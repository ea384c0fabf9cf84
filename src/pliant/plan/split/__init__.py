"""Turn a partition into a program."""
