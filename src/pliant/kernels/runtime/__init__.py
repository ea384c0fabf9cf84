"""From IR to calls: compiled, cached, loaded, and run by a pool of threads."""
