"""HTTP connections: the server, limits against slow clients, TLS handshakes."""
