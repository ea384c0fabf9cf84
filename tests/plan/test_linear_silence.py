"""Solvers write nothing of their own: a verb's standard output is JSON."""

import subprocess
import sys

PROGRAM = """
from pliant.compiler.layout.highs_solver import HighsSolver
HighsSolver().run()
"""


def test_a_solver_prints_nothing_when_it_is_made_or_runs() -> None:
    """Its banner stood before the answer of `pliant cluster run --json`, now and then."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True)
    assert done.stdout == ""
