"""Annotations of arrays, with and without who checks them."""

import subprocess
import sys

import jaxtyping
import numpy as np
import pytest

from pliant import arrays
from pliant.kernels.runtime.aligned_memory import aligned_floats
from pliant.kernels.runtime.call_table import CallTable


def test_tests_check_shapes_by_jaxtyping() -> None:
    """A stand-in here would let every shape pass."""
    assert arrays.Int64 is jaxtyping.Int64
    with pytest.raises(Exception, match="shares"):
        CallTable().set_shares(np.zeros((1, 3), np.int64))
    assert aligned_floats(2, 3).shape == (2, 3)


def test_a_process_that_checks_nothing_never_loads_jaxtyping() -> None:
    """It takes 13 MB and a tenth of a second, for which a user of a model has no use."""
    code = (
        "import sys, pliant.api.compile_onnx;"
        "from pliant.kernels.runtime.aligned_memory import aligned_floats;"
        "assert aligned_floats(2, 3).shape == (2, 3);"
        "sys.exit('jaxtyping' in sys.modules or 'highspy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
