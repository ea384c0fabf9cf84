"""ONNX's backend interface: inputs by position, one device."""

import doctest

import numpy as np
import pytest

import pliant.api.onnx_backend as backend
from pliant.errors import InputError
from tests.models.onnx_models import parse

DIFFERENCE = parse("g (float[2] x, float[2] w) => (float[2] y, float[2] z) { y = Sub(x, w) z = Sub(w, x) }")
X, W = np.float32([5, 7]), np.float32([1, 2])


def test_its_example_runs() -> None:
    """What the docstring shows is what a reader tries first."""
    assert doctest.testmod(backend).failed == 0


def test_inputs_and_outputs_go_by_position() -> None:
    """ONNX's own test runner knows no names."""
    y, z = backend.prepare(DIFFERENCE, "CPU").run([X, W])
    assert [y.tolist(), z.tolist()] == [[4, 5], [-4, -5]]
    assert backend.run_model(DIFFERENCE, {"x": X, "w": W})[0].tolist() == [4, 5]


def test_a_wrong_number_of_inputs_is_named() -> None:
    """Positions say nothing about which one is missing."""
    with pytest.raises(InputError, match=r"1 inputs were given; the model takes \['x', 'w'\]"):
        backend.prepare(DIFFERENCE).run([X])


def test_other_devices_and_options_are_refused() -> None:
    """The runner asks before it prepares."""
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA:1")
    with pytest.raises(InputError, match="no device 'CUDA'"):
        backend.prepare(DIFFERENCE, "CUDA")
    with pytest.raises(InputError, match=r"unknown options \['fast'\]"):
        backend.prepare(DIFFERENCE, fast=True)
