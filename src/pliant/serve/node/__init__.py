"""A node: its models, upstreams and metrics."""
