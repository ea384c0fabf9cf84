"""The primary: planning, leading and recording runs."""
