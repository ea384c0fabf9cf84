"""From weights to nested bit-planes."""
