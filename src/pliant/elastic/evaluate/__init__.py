"""Accuracy of answers, with intervals."""
