"""Check programs and executables that were read from text."""
