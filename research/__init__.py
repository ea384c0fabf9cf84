"""Simulators, oracles and exact solvers for evaluations; not part of the wheel."""
