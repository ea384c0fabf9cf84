"""HTTP: connections, limits, paths, who may ask."""
