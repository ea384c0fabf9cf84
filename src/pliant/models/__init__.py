"""Model specifications and model files."""
