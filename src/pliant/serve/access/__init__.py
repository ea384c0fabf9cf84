"""Access to a node: roles, tokens, certificates, rate limits."""
