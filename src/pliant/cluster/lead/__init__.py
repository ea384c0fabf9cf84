"""The primary: plans, runs, records."""
