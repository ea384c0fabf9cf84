"""Control messages between members."""
