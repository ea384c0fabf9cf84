"""Which device takes what (Hepti 4.3)."""
