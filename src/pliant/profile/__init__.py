"""What this device does, measured."""
