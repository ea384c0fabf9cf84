"""Other nodes: forwarded requests, pings and broadcasts over persistent connections."""
