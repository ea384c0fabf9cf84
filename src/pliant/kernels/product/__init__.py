"""Matrix products of plain and integer matrices."""
