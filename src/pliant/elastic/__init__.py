"""Elastic models: trained (extra `train`), measured, evaluated."""
