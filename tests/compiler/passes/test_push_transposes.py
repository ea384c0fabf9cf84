"""Transposes pass element-wise operators where that leaves fewer of them: as text, and with equal results."""

import pytest

from pliant.compiler.passes.dead_code import drop_dead_code
from pliant.compiler.passes.push_transposes import push_transposes
from pliant.compiler.passes.transposes import merge_transposes
from pliant.ir.graph import Graph
from tests.compiler.passes.chains import Chain, assert_same, lines


def _count(graph: Graph) -> int:
    return sum(node.op == "Transpose" for node in graph.nodes)


def test_a_transpose_moves_on_to_the_next() -> None:
    """Channels last, an activation, channels first: merged, both are gone."""
    chain = Chain(x=(2, 3, 4, 5))
    chain.add("t", "Transpose", "x", perm=[0, 2, 3, 1])
    chain.add("r", "Relu", "t")
    chain.add("s", "Mul", "r", 2.0)
    graph = chain.graph(chain.add("y", "Transpose", "s", perm=[0, 3, 1, 2]))
    pushed = push_transposes(graph)
    assert lines(pushed) == [
        "r.before = Relu (x)",
        "s.before = Mul (r.before, s.1)",
        "s = Transpose <perm=(0, 2, 3, 1)> (s.before)",
        "y = Transpose <perm=(0, 3, 1, 2)> (s)",
    ]
    assert_same(pushed, chain)
    merged = drop_dead_code(merge_transposes(pushed))
    assert lines(merged)[-1] == "y = Transpose <perm=(0, 1, 2, 3)> (s.before)"
    assert_same(merged, chain)


def test_constants_change_their_order_with_it() -> None:
    """A bias of the last dimension, of lower rank, and one of full rank."""
    chain = Chain(x=(2, 3, 4))
    chain.add("t", "Transpose", "x", perm=[2, 0, 1])
    chain.add("a", "Add", "t", chain.constant("b", [1.0, 2.0, 3.0]))
    chain.add("m", "Mul", chain.constant("c", [[[1.0]], [[2.0]], [[3.0]], [[4.0]]]), "a")
    graph = chain.graph(chain.add("y", "Transpose", "m", perm=[1, 2, 0]))
    pushed = push_transposes(graph)
    assert _count(merge_transposes(pushed)) == 2
    assert _count(drop_dead_code(merge_transposes(pushed))) == 1
    assert pushed.constants["a.operand1"].shape == (1, 3, 1)
    assert_same(pushed, chain)


def test_two_operands_transposed_alike_become_one_result() -> None:
    """One transpose instead of two, whatever reads the sum."""
    chain = Chain(x=(3, 4), z=(3, 4))
    chain.add("t", "Transpose", "x")
    chain.add("u", "Transpose", "z")
    graph = chain.graph(chain.add("y", "Add", "t", "u"))
    pushed = push_transposes(graph)
    assert lines(pushed) == ["y.before = Add (x, z)", "y = Transpose <perm=(1, 0)> (y.before)"]
    assert_same(pushed, chain)


def test_broadcast_operands_of_full_rank_are_still_alike() -> None:
    """[3, 1] and [3, 4], both transposed."""
    chain = Chain(x=(3, 1), z=(3, 4))
    chain.add("t", "Transpose", "x")
    chain.add("u", "Transpose", "z")
    # The first moves only a dimension of one: a reshape, which leaves a single transpose where it is.
    graph = chain.graph(chain.add("y", "Add", "t", "u"))
    pushed = push_transposes(graph)
    assert lines(pushed)[0] == "t = Reshape <allowzero=1> (x, t.shape)"
    assert_same(pushed, chain)


@pytest.mark.parametrize("case", ["shared", "output", "unlike", "no reader", "other operand"])
def test_where_nothing_is_won_nothing_moves(case: str) -> None:
    """A transpose that others read too, unlike ones, one that meets no other, one beside a plain tensor."""
    chain = Chain(x=(3, 3, 3), z=(3, 3, 3))
    chain.add("t", "Transpose", "x", perm=[1, 0, 2])
    other = "t"
    outputs = ["y"]
    if case == "unlike":
        other = chain.add("u", "Transpose", "z", perm=[0, 2, 1])
    if case == "other operand":
        other = "z"
    if case == "shared":
        outputs.append(chain.add("n", "Neg", "t"))
    if case == "output":
        outputs.append("t")
    chain.add("a", "Add", "t", other)
    chain.add("y", "Neg" if case == "no reader" else "Transpose", "a")
    graph = chain.graph(*outputs)
    assert push_transposes(graph) is graph


def test_moving_dimensions_of_one_is_a_reshape() -> None:
    """[1, n, 1, d]: the bytes stay where they are."""
    chain = Chain(x=(1, 5, 1, 7))
    graph = chain.graph(chain.add("y", "Transpose", "x", perm=[2, 1, 0, 3]))
    assert lines(push_transposes(graph)) == ["y = Reshape <allowzero=1> (x, y.shape)"]
    assert_same(push_transposes(graph), chain)
