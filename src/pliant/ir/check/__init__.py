"""Judge programs and executables that were written down."""
