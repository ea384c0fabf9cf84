"""The list of passes: any may be left out, and what comes out still computes the same."""

import numpy as np
import pytest

from pliant.compiler.passes.passes import CLEANING, FUSING, simplify
from pliant.errors import InputError
from tests.compiler.passes.chains import Chain, assert_same
from tests.compiler.passes.read_graph import body, read


def _mixed() -> tuple[Chain, str]:
    """Something for every pass to find."""
    c = Chain(x=(2, 3, 4))
    c.add("t", "Transpose", "x", perm=[0, 2, 1])
    c.add("r", "Relu", "t")
    c.add("u", "Transpose", "r", perm=[0, 2, 1])
    c.add("v", "Relu", "t")
    c.add("w", "Transpose", "v", perm=[0, 2, 1])
    c.add("a", "Add", "u", "w")
    c.add("m", "Mul", "a", 1.0)
    c.add("f", "Reshape", "m", [6, 4])
    c.add("g", "Reshape", "f", [2, 12])
    c.add("dead", "Neg", "g")
    return c, c.add("y", "Softmax", "g", axis=-1)


@pytest.mark.parametrize("without", [(), *((name,) for name in (*CLEANING, *FUSING)), (*CLEANING, *FUSING)])
def test_every_pass_can_be_left_out(without: tuple[str, ...]) -> None:
    """A pass that others rely on would make `--without` a trap."""
    chain, output = _mixed()
    assert_same(simplify(chain.graph(output), without), chain)


def test_a_name_that_is_no_pass_is_an_error() -> None:
    """A misspelt option must not be dropped silently."""
    chain, output = _mixed()
    with pytest.raises(InputError, match=r"no passes \['fold'\]; the passes are dead, "):
        simplify(chain.graph(output), ["fold"])


def test_cleaning_runs_until_nothing_is_left_to_find() -> None:
    """A transpose pair around a reshape chain that does nothing shows only once the chain is gone."""
    graph = read(
        """g (float[2,3] x) => (float[2,3] y) {
          s = Constant <value = int64[1] {6}> () t = Constant <value = int64[2] {3, 2}> ()
          a = Transpose <perm = [1, 0]> (x) b = Reshape(a, s) c = Reshape(b, t)
          d = Transpose <perm = [1, 0]> (c) y = Relu(d) }"""
    )
    assert body(simplify(graph, without=list(FUSING))) == ["y = Relu (x)"]


def test_shapes_and_types_stay_what_they_were() -> None:
    """Kernels are chosen by type; a pass that loses one would show only much later."""
    chain, output = _mixed()
    before = chain.graph(output)
    after = simplify(before)
    assert [after.types[y] for y in after.outputs] == [before.types[y] for y in before.outputs]
    assert np.all([x in after.types for node in after.nodes for x in (*node.inputs, *node.outputs) if x])
