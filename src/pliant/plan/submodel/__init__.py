"""Choose the submodel and bits for a target and a buffer (STI 5)."""
