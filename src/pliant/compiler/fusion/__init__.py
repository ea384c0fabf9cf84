"""Passes that fuse several nodes into one."""
