"""One member's part of a run."""
