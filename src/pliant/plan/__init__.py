"""Plans: submodels under a target, and partitions over devices."""
