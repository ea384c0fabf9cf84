"""Programs, replies, tables and timelines as text."""
