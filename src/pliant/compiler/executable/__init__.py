"""Executables: kernel calls and the memory place of every tensor."""
