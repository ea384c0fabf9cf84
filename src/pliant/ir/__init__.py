"""Values that every room shares: graphs, programs, costs, curves, devices, endpoints."""
