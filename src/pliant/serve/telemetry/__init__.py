"""What is seen of a node: trace context, spans, log lines, and health of processes without HTTP."""
