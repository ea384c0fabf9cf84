"""Who may call a node, and how often: roles, tokens, certificates, rates."""
