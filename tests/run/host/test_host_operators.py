"""Operators in numpy give what onnxruntime gives."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from pliant.errors import InputError
from pliant.models.onnx.onnx_tensor import ELEMENT_TYPES
from pliant.run.host.host_operators import host_function, with_input_errors

OPSET = 17


def ours(op: str, inputs: Sequence[np.ndarray], n_outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
    """The outputs of one node in numpy."""
    node = helper.make_node(op, *_names(inputs, n_outputs), "it", **attributes)
    run = with_input_errors(host_function(node, {"": OPSET}), node, f"node 'it' ({op})")
    return [np.asarray(y) for y in run(inputs)]


def theirs(op: str, inputs: Sequence[np.ndarray], n_outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
    """The outputs of onnxruntime."""
    names, outputs = _names(inputs, n_outputs)
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, "it", **attributes)],
        "one",
        [
            helper.make_tensor_value_info(x, ELEMENT_TYPES[str(a.dtype)], a.shape)
            for x, a in zip(names, inputs, strict=True)
        ],
        [helper.make_empty_tensor_value_info(y) for y in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(zip(names, inputs, strict=True))))


def _names(inputs: Sequence[np.ndarray], n_outputs: int) -> tuple[list[str], list[str]]:
    return [f"x{i}" for i in range(len(inputs))], [f"y{i}" for i in range(n_outputs)]


def compare(op: str, inputs: Sequence[np.ndarray], n_outputs: int = 1, **attributes: Any) -> None:
    """Both give the same types, shapes and values."""
    for y, right in zip(
        ours(op, inputs, n_outputs, **attributes), theirs(op, inputs, n_outputs, **attributes), strict=True
    ):
        assert (y.dtype, y.shape) == (right.dtype, right.shape)
        np.testing.assert_array_equal(y, right)


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) % 5
CASES: Mapping[str, tuple[Any, ...]] = {
    "NonZero": ([X],),
    "NonZero of a scalar": ([np.array(3.0, np.float32)],),
    "NonZero of zeros": ([np.zeros((2, 3), np.float32)],),
    "NonZero of booleans": ([X > 2],),
    "Unique": ([X], 4),
    "Unique of an axis": ([X], 4, {"axis": 1}),
    "Unique unsorted": ([X[:, ::-1, ::-1].copy()], 4, {"sorted": 0}),
    "Unique of nothing": ([np.zeros(0, np.float32)], 4),
    "Compress": ([X, np.array([True, False, True])], 1, {"axis": 1}),
    "Compress flat": ([X, np.array([False, True, True])],),
    "Reshape": ([X, np.array([0, -1], np.int64)],),
    "Expand": ([X[:1], np.array([4, 2, 1, 4], np.int64)],),
    "Slice": ([X, np.array([1], np.int64), np.array([9], np.int64), np.array([-1], np.int64)],),
    "Slice backwards": ([X, *(np.array(v, np.int64) for v in ([-1, 3], [-99, -99], [0, 2], [-1, -2]))],),
    "Range": ([np.array(v, np.int64) for v in (3, 17, 4)],),
    "Range of floats": ([np.array(v, np.float32) for v in (1.0, -1.0, -0.3)],),
    "Range of nothing": ([np.array(v, np.int64) for v in (3, 1, 4)],),
    "ConstantOfShape": ([np.array([2, 0, 3], np.int64)],),
    "Tile": ([X, np.array([1, 2, 3], np.int64)],),
    "Squeeze": ([X[:, None], np.array([1], np.int64)],),
    "Unsqueeze": ([X, np.array([0, -1], np.int64)],),
    "TopK": ([X, np.array([2], np.int64)], 2, {"axis": -1}),
}


@pytest.mark.parametrize("case", CASES)
def test_operators_give_what_onnxruntime_gives(case: str) -> None:
    """An operator runs in numpy where its operand is data, and else as a kernel: both must mean the same."""
    inputs, n_outputs, attributes = (*CASES[case], 1, {}) if len(CASES[case]) == 1 else (*CASES[case], {})[:3]
    compare(case.split()[0], inputs, n_outputs, **attributes)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 30),
    st.sampled_from([0, 1, 5, 100]),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    st.booleans(),
)
def test_boxes_that_overlap_are_left_out_as_in_onnxruntime(
    seed: int, n: int, most: int, threshold: float, is_center: bool
) -> None:
    """Scores on a coarse grid: ties are broken by place, on both sides."""
    rng = np.random.default_rng(seed)
    boxes = rng.uniform(0, 1, (2, n, 4)).astype(np.float32)
    scores = (rng.integers(0, 8, (2, 3, n)) / 8).astype(np.float32)
    limits = [np.array([most], np.int64), *(np.array([v], np.float32) for v in (threshold, 0.25))]
    compare("NonMaxSuppression", [boxes, scores, *limits], center_point_box=int(is_center))


def test_an_error_names_node_operator_and_inputs() -> None:
    """What does not fit was computed from data: the user sees neither otherwise."""
    with pytest.raises(InputError, match=r"node 'it' \(Reshape\).*x0: float32\[2, 3, 4\].*x1: int64\[1\]"):
        ours("Reshape", [X, np.array([7], np.int64)])


def test_a_position_outside_a_sequence_is_refused() -> None:
    """Python's lists would take it from the other end, or add at the end."""
    for op in ("SequenceAt", "SequenceErase"):
        node = helper.make_node(op, ["s", "i"], ["y"], "it")
        with pytest.raises(InputError, match=r"position 2 is outside a sequence of 2"):
            with_input_errors(host_function(node, {"": OPSET}), node, "node 'it'")([[X, X], np.array(2)])


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("ConstantOfShape", [np.array([1 << 20, 1 << 20])]),
        ("Expand", [np.ones(1, np.float32), np.array([1 << 20, 1 << 20])]),
        ("Tile", [np.ones((2, 2), np.float32), np.array([1 << 20, 1 << 20])]),
        ("Range", [np.array(0), np.array(1 << 50), np.array(1)]),
    ],
)
def test_data_that_ask_for_more_than_the_machine_has_are_refused(op: str, inputs: list[np.ndarray]) -> None:
    """A client's numbers must not end a node: the system kills who touches that much."""
    with pytest.raises(InputError, match=r"node 'it'.* would take [0-9.]+ GB; this machine has"):
        ours(op, inputs)
