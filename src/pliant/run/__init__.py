"""Execution of programs: lanes, memory, traces and sessions."""
