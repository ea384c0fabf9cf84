"""The web page of a node: its live requests in a browser."""
