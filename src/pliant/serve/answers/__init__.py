"""How a request is answered: admitted, sent to an endpoint, computed in a batch, counted, explained."""
