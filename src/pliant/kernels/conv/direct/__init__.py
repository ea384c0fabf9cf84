"""Convolutions without packed blocks: depthwise, transposed, deformable, integer, and single points."""
