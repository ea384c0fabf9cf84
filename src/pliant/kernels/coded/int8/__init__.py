"""Integer products of coded weights: blocks filled with bytes, tiles that multiply them, one row."""
