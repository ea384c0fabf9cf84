"""Specifications, weights and graphs of recurrent models."""
