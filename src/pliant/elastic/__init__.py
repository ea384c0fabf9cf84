"""Elastic models: made by training (extra `train`), measured, evaluated."""
