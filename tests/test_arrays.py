"""Annotations of arrays, with and without who checks them."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jaxtyping
import numpy as np
import pytest

from pliant import arrays
from pliant.kernels.runtime.aligned_memory import aligned_floats
from pliant.kernels.runtime.call_table import CallTable
from tests.shape_checks import names_array

Row = arrays.Float[np.ndarray, " n"]


@dataclass(frozen=True)
class _Rows:
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class _Number:
    kind: Literal["rows"]
    number: int | None = None


def _of_rows(x: Row | None) -> None: ...
def _to_rows(n: int) -> dict[str, Row]: ...
def _by_rows(each: Callable[[Row], int]) -> None: ...
def _without_rows(one: _Number, *more: str) -> list[_Rows]: ...


def test_tests_check_shapes_by_jaxtyping() -> None:
    """A stand-in here would let every shape pass."""
    assert arrays.Int64 is jaxtyping.Int64
    with pytest.raises(Exception, match="shares"):
        CallTable().set_shares(np.zeros((1, 3), np.int64))
    assert aligned_floats(2, 3).shape == (2, 3)


@pytest.mark.parametrize("one", [_of_rows, _to_rows, _by_rows, _Rows])
def test_what_names_an_array_is_checked(one: object) -> None:
    """Wherever it stands: shapes are checked nowhere else."""
    assert names_array(one)


@pytest.mark.parametrize("one", [_without_rows, _Number])
def test_what_names_no_array_is_left_to_mypy(one: object) -> None:
    """To check every call would double the time of a plan."""
    assert not names_array(one)


def test_a_process_that_checks_nothing_never_loads_jaxtyping() -> None:
    """It takes 13 MB and a tenth of a second, for which a user of a model has no use."""
    code = (
        "import sys, pliant.api.compile_onnx;"
        "from pliant.kernels.runtime.aligned_memory import aligned_floats;"
        "assert aligned_floats(2, 3).shape == (2, 3);"
        "sys.exit('jaxtyping' in sys.modules or 'highspy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
