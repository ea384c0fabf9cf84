"""The primary's view of devices and links."""
