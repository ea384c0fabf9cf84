"""Sessions on elastic models."""
