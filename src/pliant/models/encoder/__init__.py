"""Transformer encoders, one file per family: configuration, weight names, input and output stages."""
