"""What runs programs: lanes, memory, traces."""
