"""From a graph to an executable, or to C."""
