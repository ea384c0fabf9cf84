"""Moments that examples give: measured once for each graph, and in memory while matrices are to be coded."""

import weakref

import numpy as np
import pytest
from onnx import numpy_helper

from pliant.compiler.rewrite.coder import matrix_digest
from pliant.errors import BudgetError
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.onnx.onnx_file import OnnxModel, open_onnx
from pliant.run.batches.buckets import Buckets
from pliant.run.graph.example_moments import ExampleMoments
from pliant.run.graph.input_moments import group_examples, measure_moments
from pliant.run.graph.lowering import Lowering
from pliant.run.graph.model_binder import ModelBinder
from pliant.run.graph.model_options import ModelOptions
from pliant.run.weight_sizes import GivenArrays
from tests.models.onnx_models import parse

W = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)


def model_of(text: str) -> OnnxModel:
    made = parse(text)
    made.graph.initializer.append(numpy_helper.from_array(W, "w"))
    return open_onnx(made)


def linear() -> OnnxModel:
    return model_of("m (float[B, S, 64] x) => (float[B, S, 96] y) { h = MatMul(x, w) y = Softmax(h) }")


def feeds_of(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((1, n, 64)).astype(np.float32)}


def test_examples_of_equal_shapes_share_a_program() -> None:
    """Also where other shapes come between. The moments are X' X of all their rows, in float64."""
    model = linear()
    examples = [feeds_of(n, seed) for seed, n in enumerate((2, 3, 2, 3, 2))]
    groups = list(group_examples(ModelBinder(model, Buckets()), model.inputs, "m", examples))
    assert [[feeds["x"].shape[1] for feeds in group] for _, group in groups] == [[2, 2, 2], [3, 3]]
    library = Library(host_isa())
    with ThreadPool(1, library) as pool:
        (found,) = measure_moments(groups, (), pool, library).items()
    rows = np.concatenate([feeds["x"][0] for feeds in examples]).astype(np.float64)
    assert found[0] == matrix_digest(W)
    np.testing.assert_allclose(found[1], rows.T @ rows, atol=1e-4)


def test_inputs_by_value_have_their_own_programs() -> None:
    """The number of rows of w is the value of n: examples of equal shapes with other values are apart."""
    model = model_of(
        "m (float[B, 64] x, int64[1] n) => (float[B, 96] y) <int64[1] zero = {0}, int64[1] one = {1}> {"
        " a = Slice(x, zero, n, one) b = Slice(w, zero, n) y = MatMul(a, b) }"
    )
    examples = [{"x": W[:64, :64].copy(), "n": np.array([n])} for n in (48, 64, 48, 64)]
    groups = list(group_examples(ModelBinder(model, Buckets()), model.inputs, "m", examples))
    assert [[int(feeds["n"][0]) for feeds in group] for _, group in groups] == [[48, 48], [64, 64]]


def test_moments_are_freed_with_the_budget_error() -> None:
    """Weights that do not fit in any form: a session without an image would keep the moments for its life.
    Smaller shapes measure them again, after which the examples are freed.
    """
    grams: list[weakref.ref[np.ndarray]] = []

    def measure() -> dict[bytes, np.ndarray]:
        gram = np.eye(64, dtype=np.float32)
        grams.append(weakref.ref(gram))
        return {matrix_digest(W): gram}

    kept = weakref.ref(measure)
    moments = ExampleMoments(measure)
    del measure
    model, library = linear(), Library(host_isa())
    binder = ModelBinder(model, Buckets())
    bound = [binder.bind({"x": (1, n, 64)}, {}).graph for n in (500, 1)]
    options = ModelOptions({}, weights="auto", memory_bytes=5500)
    with ThreadPool(1, library) as pool:
        lowering = Lowering("m", options, pool, library, lambda: None, GivenArrays(), moments=moments)
        with pytest.raises(BudgetError, match="5500 bytes of memory are too little"):
            lowering.lower(bound[0])
        assert [gram() is None for gram in grams] == [True]
        assert kept() is not None
        lowering.lower(bound[1])
    assert lowering.weights in range(1, 7)
    assert [gram() is None for gram in grams] == [True, True]
    assert kept() is None


def test_moments_of_matrices_to_come_are_kept() -> None:
    """All matrices are coded for one measurement, after which the examples are freed."""
    one, other = (np.full((2, 2), x, np.float32) for x in (1.0, 2.0))
    n_measured = 0

    def measure() -> dict[bytes, np.ndarray]:
        nonlocal n_measured
        n_measured += 1
        return {b"one": one, b"other": other}

    moments = ExampleMoments(measure)
    moments.free_coded()  # before any is measured, it keeps the examples
    assert moments.of(b"one") is one
    moments.free_coded()
    assert moments.of(b"one") is None
    assert moments.of(b"other") is other
    moments.clear()
    assert moments.of(b"other") is None
    assert n_measured == 1
