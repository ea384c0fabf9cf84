"""Kernel calls and the place of every tensor, in memory."""
