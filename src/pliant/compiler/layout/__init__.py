"""Which layout every tensor has and which loops every kernel runs (FluidML 3)."""
