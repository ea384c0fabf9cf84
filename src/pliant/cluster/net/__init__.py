"""Engines that carry tensors between members."""
