"""Assignment of shares to devices (Hepti 4.3)."""
