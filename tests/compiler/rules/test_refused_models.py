"""What a model file can get wrong is refused by checks, not by assertions."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pliant.errors import GraphError
from tests.compiler.rules.refused_models import CASES, refusals


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_model_is_refused(name: str) -> None:
    """Native code behind these checks would read or write outside of its tensors; the node is named."""
    attempt, said = CASES[name]
    with pytest.raises(GraphError, match=said) as caught:
        attempt()
    assert re.search(r"node '\w|the model", str(caught.value))


def test_it_is_refused_without_assertions_too() -> None:
    """`python -O` strips them: the same models must be refused with the same words, and nothing crashes."""
    ran = subprocess.run(
        [sys.executable, "-O", "-m", "tests.compiler.rules.refused_models"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        check=True,
        text=True,
    )
    found = json.loads(ran.stdout)
    assert not found["assertions"]
    assert found["refusals"] == refusals()
