"""Values shared by all packages: graphs, programs, costs, curves, devices, endpoints."""
