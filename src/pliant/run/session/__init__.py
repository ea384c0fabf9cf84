"""The parts common to all sessions: methods, feeds, ports and profiles."""
