"""Stores: shards of a model at several bitwidths on disk."""
