"""Other nodes: requests passed on, pings and broadcasts, over kept connections."""
