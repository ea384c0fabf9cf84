"""Choose the layout of every tensor and the loops of every kernel (FluidML 3)."""
