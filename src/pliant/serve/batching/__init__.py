"""Which of the requests that wait run next, and together."""
