"""A router's view of each upstream node: its link, its queue, its advert, and when to ping it."""
