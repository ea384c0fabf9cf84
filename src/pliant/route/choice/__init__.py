"""The choice of an endpoint for a request, and its inputs: terms, objective, energy, crowding."""
