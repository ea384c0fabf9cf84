"""A model behind HTTP: the Open Inference Protocol, routed. Knows no plan, kernel or model file."""
