"""A partition as a program."""
