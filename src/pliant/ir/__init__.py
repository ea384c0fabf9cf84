"""Values that every layer shares: graphs, programs, costs, curves, devices, endpoints."""
