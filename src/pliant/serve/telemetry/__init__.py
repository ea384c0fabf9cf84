"""Observability of a node: trace context, spans, log lines, health of processes without an HTTP API."""
