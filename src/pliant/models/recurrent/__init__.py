"""Recurrent models as data and as graphs."""
