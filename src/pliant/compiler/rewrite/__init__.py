"""What passes are written with: patterns, rewriting, views."""
