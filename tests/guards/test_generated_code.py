"""The code that the kernel generators write, as hashes, for every instruction set. Nothing is compiled.

Protects: every instruction of every kernel. Kernels are found in a user's cache by their text, and answers
are promised to the bit, so code that moves between modules must write the same text as before.
Update: `pytest tests/guards/test_generated_code.py --update-golden`; the commit says which generators
changed and why. A new generator gets a case in generators.py; a new instruction set is found by itself.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guards import generators
from tests.guards.generators import ROWS, cases, expression_operations, function, known_operations


def test_every_generator_has_a_case() -> None:
    """A generator that is not listed may change its code unseen."""
    guarded = {function(generator) for row in ROWS.values() for generator in cases(row).values()}
    found = generators.generators()
    missing = {f"{g.__module__}.{g.__qualname__}" for g in found - guarded}
    assert not missing, f"add a case to generators.py for {', '.join(sorted(missing))}"
    assert guarded <= found, "the search for generators no longer finds some that are listed"


def test_every_operation_of_expressions_has_a_case() -> None:
    """There is one element-wise kernel for each expression, so each operation must stand in one of those."""
    missing = known_operations() - expression_operations()
    assert not missing, f"add an expression to generators.py with {', '.join(sorted(missing))}"


@pytest.mark.slow
def test_generators_write_the_code_that_they_wrote(golden_record: Callable[..., None]) -> None:
    """Code that only moves writes the same kernels.

    A process of its own writes them in 8 s of CPU time; here annotations are checked, which takes 180 s.
    """
    root = Path(__file__).parents[2]
    child = subprocess.run(
        [sys.executable, "-m", generators.__name__], cwd=root, capture_output=True, text=True, check=True
    )
    named = {label: function(g).__qualname__ for row in ROWS.values() for label, g in cases(row).items()}
    golden_record("generated_code.json", json.loads(child.stdout), named)
