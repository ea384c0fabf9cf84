"""What graph sessions run between executables, in numpy: operators and loops that data decide."""
