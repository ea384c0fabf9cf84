"""Matrix products whose weights are decoded from bit-planes on the fly."""
