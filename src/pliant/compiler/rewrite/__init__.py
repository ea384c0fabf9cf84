"""Building blocks of passes: patterns, rewriting, views."""
