"""The page of a node: what answers its requests, live, in a browser."""
