"""What a model is, and where its files come from."""
