"""What clients of OpenAI's API may ask of a node."""
