"""A node: its models, its upstreams, its metrics."""
