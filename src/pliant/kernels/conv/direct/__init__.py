"""Convolutions that need no packed blocks: depthwise, transposed, deformable, integer, and single points."""
