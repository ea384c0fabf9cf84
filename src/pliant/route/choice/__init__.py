"""The choice of an endpoint for a request, and what it is made from: terms, objective, energy, crowding."""
