"""The session of a model on a cluster: its inputs, plans and replies."""
