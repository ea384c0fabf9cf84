"""What a router knows of each node above it: its link, its queue, its word, and when to ask again."""
