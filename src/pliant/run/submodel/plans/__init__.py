"""Plans of an elastic session: the planner, the split of its memory, and the cache."""
