"""What sessions of every kind share: their methods, feeds, ports and profiles."""
