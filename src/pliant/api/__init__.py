"""The functions of `import pliant`."""
