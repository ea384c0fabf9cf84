"""Operators that only move data through a session, against onnx's reference implementation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import AVX2, Isa, to_portable
from tests.compiler.rules.run_node import expected, run_node, type_of

HOST = to_portable(AVX2)


def check(
    op: str,
    inputs: Sequence[np.ndarray | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    constants: Sequence[int] = (),
    n_outputs: int = 1,
    isa: Isa = HOST,
) -> None:
    """Moving must not change a bit."""
    wanted = expected(op, inputs, attributes, n_outputs=n_outputs)
    made = run_node(op, inputs, attributes, types=[type_of(y) for y in wanted], isa=isa, constants=constants)
    for y, w in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(y, w)


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 50).astype(dtype)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "int64", "float64"])
def test_transpose_of_every_element_size(dtype: str) -> None:
    """A kernel knows bytes, no types: NaN payloads and signs of zero survive too."""
    check("Transpose", [numbers(33, 70, dtype=dtype)])
    check("Transpose", [numbers(2, 17, 4, 16, dtype=dtype)], {"perm": [0, 2, 1, 3]})
    check("Transpose", [numbers(2, 17, 4, 16, dtype=dtype)], {"perm": [0, 2, 3, 1]})


def test_a_transpose_that_moves_no_element_is_no_call() -> None:
    """[1, n, 1, d] -> [n, 1, 1, d] has the same bytes; attention at batch 1 is full of these."""
    types = {"x": TensorType("float32", (1, 7, 1, 5)), "y": TensorType("float32", (7, 1, 1, 5))}
    node = Node("Transpose", ("x",), ("y",), {"perm": (1, 0, 2, 3)})
    assert make_image(Graph((node,), ("x",), ("y",), types), Target(HOST)).calls == ()
    check("Transpose", [numbers(1, 7, 1, 5)], {"perm": [1, 0, 2, 3]})


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ([0, 0], [3, 10], [0, 1], [1, 1]),
        ([5], [-2], [0], [1]),
        ([19, -1], [-100, -9], [0, -1], [-2, -1]),
        ([1000], [-(2**63)], [0], [-3]),
        ([0], [2**63 - 1], [1], [4]),
        ([7], [3], [0], [1]),
        ([25], [30], [0], [1]),
    ],
)
def test_slices_clamp_as_onnx_says(starts: list, ends: list, axes: list, steps: list) -> None:
    """Ends far outside mean the end; negative steps walk back; an empty slice is empty."""
    inputs = [numbers(20, 10, 5), ints(*starts), ints(*ends), ints(*axes), ints(*steps)]
    check("Slice", inputs, constants=(1, 2, 3, 4))


def test_an_outermost_slice_is_a_part_of_its_input() -> None:
    """Bytes one after another need no copy inside a graph."""
    types = {"x": TensorType("float32", (6, 4)), "a": TensorType("float32", (2, 4))}
    types |= {"b": TensorType("float32", (4, 4)), "n": TensorType("int64", (2,))}
    node = Node("Split", ("x", "n"), ("a", "b"), {"axis": 0})
    graph = Graph((node,), ("x",), ("a", "b"), types, {"n": ints(2, 4)})
    assert make_image(graph, Target(HOST)).calls == ()
    check("Split", [numbers(6, 4), ints(2, 4)], {"axis": 0}, constants=(1,), n_outputs=2)


def test_split_and_concat_along_any_axis() -> None:
    """Parts of unequal and of no length."""
    check("Split", [numbers(6, 9), ints(1, 0, 8)], {"axis": 1}, constants=(1,), n_outputs=3)
    check("Concat", [numbers(3, 4, 5), numbers(3, 1, 5), numbers(3, 0, 5)], {"axis": 1})
    check("Concat", [numbers(3, 4), numbers(5, 4)], {"axis": 0})
    check("Concat", [numbers(200, 400), numbers(200, 300)], {"axis": -1})
    check("Concat", [numbers(0, 4), numbers(5, 4)], {"axis": 0})


def test_expand_and_tile_repeat() -> None:
    """A stride of zero, inner or outer; a scalar; nothing."""
    check("Expand", [numbers(3, 1, 4), ints(2, 3, 5, 4)], constants=(1,))
    check("Expand", [numbers(300, 1), ints(300, 70)], constants=(1,))
    check("Expand", [np.array(3, np.float32), ints(300, 500)], constants=(1,))
    check("Expand", [numbers(3, 1), ints(1, 0)], constants=(1,))
    check("Tile", [numbers(3, 4), ints(2, 3)], constants=(1,))
    check("Tile", [numbers(3, 4, dtype="int8"), ints(1, 0)], constants=(1,))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_and_depth(mode: str) -> None:
    """Six-dimensional transposes with inner loops of two."""
    check("DepthToSpace", [numbers(2, 8, 3, 4)], {"blocksize": 2, "mode": mode})
    check("SpaceToDepth", [numbers(2, 3, 4, 6)], {"blocksize": 2})


def test_what_decides_a_shape_must_be_known() -> None:
    """A static program cannot wait for the data to say how long a slice is."""
    types = {x: TensorType("int64", (1,)) for x in ("s", "e")}
    types |= {x: TensorType("float32", (4,)) for x in ("x", "y")}
    graph = Graph((Node("Slice", ("x", "s", "e"), ("y",), name="cut"),), ("x", "s", "e"), ("y",), types)
    with pytest.raises(GraphError, match=r"'cut' \(Slice\) needs its input 's'"):
        make_image(graph, Target(HOST))
