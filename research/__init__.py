"""Simulators, oracles and exact solvers that only evaluations use; not in the wheel."""
