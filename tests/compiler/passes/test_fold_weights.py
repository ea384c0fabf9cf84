"""Weights that every run would make anew are made once, or a few rows at a time: equal results."""

import numpy as np
import pytest

from pliant.compiler.passes.dead_code import drop_dead_code
from pliant.compiler.passes.fold_weights import FoldedWeightCache, fold_weights
from tests.compiler.passes.chains import Chain, assert_same

V, E, FLOAT = 60, 96, 1


def _table(c: Chain, scales: tuple[int, ...], zero: bool = False) -> str:
    random = np.random.default_rng(0)
    real = c.add("f", "Cast", c.constant("q", random.integers(-127, 128, (V, E)), "int8"), to=FLOAT)
    if zero:
        real = c.add("d", "Sub", real, c.constant("z", random.integers(-9, 9, (V, 1))))
    return c.add("w", "Mul", real, c.constant("s", random.random(scales)))


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("scales", [(), (1, E), (V, 1), (E,)])
def test_a_lookup_picks_rows_of_the_codes(scales: tuple[int, ...], zero: bool) -> None:
    """The whole table was made into floats for each answer: 30,000 rows of which 16 are read."""
    c = Chain(x=(2, 3))
    y = c.add("y", "Gather", _table(c, scales, zero), [[0, 5, -1], [7, 7, 59]])
    made = drop_dead_code(fold_weights(c.graph(y), FoldedWeightCache()))
    assert made.nodes[0].inputs[0] == "q"
    assert max(made.types[n].size for node in made.nodes for n in node.outputs) == 2 * 3 * E
    assert_same(made, c)


def test_a_table_that_is_a_product_too_is_kept_once() -> None:
    """Tied embeddings: rows are looked up in the codes that the product takes."""
    c = Chain(x=(5, E))
    w = _table(c, (V, 1))
    rows = c.add("rows", "Gather", w, [3, 1, 4, 1, 5])
    y = c.add("y", "MatMul", c.add("h", "Add", "x", rows), c.add("t", "Transpose", w))
    made = drop_dead_code(fold_weights(c.graph(y), FoldedWeightCache()))
    assert not any(a.dtype == np.float32 and a.size > V for a in made.constants.values())
    assert_same(made, c, 1e-4)


def test_what_no_kernel_takes_coded_is_a_constant_for_all_shapes() -> None:
    """A convolution's kernels, weights on the left, an output: made once, the same array for each shape."""
    folded = FoldedWeightCache()
    random = np.random.default_rng(0)
    kernels = random.integers(-9, 9, (4, 3, 3, 3)).astype(np.int8)
    scales = random.random(4).astype(np.float32)
    arrays = []
    for size in (8, 9):
        c = Chain(x=(1, 3, size, size))
        c.constants |= {"q": kernels, "s": scales}
        c.values |= c.constants
        y = c.add("y", "Conv", "x", c.add("w", "DequantizeLinear", "q", "s", axis=0))
        made = drop_dead_code(fold_weights(c.graph(y), folded))
        assert [node.op for node in made.nodes] == ["Conv"]
        assert_same(made, c, 1e-4)
        arrays.append(made.constants[made.nodes[0].inputs[1]])
    assert arrays[0] is arrays[1]


def test_an_output_made_of_weights_is_answered() -> None:
    """The graph's interface stays what it was."""
    c = Chain(x=(V, V))
    w = _table(c, (1, E))
    graph = c.graph(c.add("y", "MatMul", "x", w), w)
    made = fold_weights(graph, FoldedWeightCache())
    assert made.outputs == ("y", "w")
    assert_same(made, c, 1e-4)


def test_a_graph_without_such_weights_stays_itself() -> None:
    """Nothing is copied for models in float32."""
    c = Chain(x=(3, 4))
    graph = c.graph(c.add("y", "MatMul", "x", c.constant("w", np.ones((4, 5)))))
    assert fold_weights(graph, FoldedWeightCache()) is graph
