"""The submodel and bits that a target and a buffer allow (STI 5)."""
