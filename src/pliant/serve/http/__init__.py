"""HTTP: connections, limits, paths, tokens and TLS."""
