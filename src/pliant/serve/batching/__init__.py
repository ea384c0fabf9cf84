"""Choose which waiting requests run next, and in which batch."""
