"""What the primary sees of devices and links."""
