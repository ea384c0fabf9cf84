"""Request handling: admission, routing, batched execution, metrics, explanations."""
