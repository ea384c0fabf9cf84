"""Measurements of this device."""
