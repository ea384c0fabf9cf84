"""A model behind HTTP: the Open Inference Protocol, routed."""
