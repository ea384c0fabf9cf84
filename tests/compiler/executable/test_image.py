"""Places of a whole image: results take over what dies, and never what somebody still reads."""

from dataclasses import replace

import numpy as np
import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import arena_tensors
from pliant.compiler.executable.image import Image, make_image
from pliant.compiler.executable.place_tensors import Lifetime
from pliant.ir.check.executable_check import arena_faults
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import host_isa
from pliant.run.graph.array_stage import open_image
from tests.compiler.rules.run_node import machine

SHAPE = (37, 53)
N_BYTES = 4 * 37 * 53


def an_image(nodes: tuple[Node, ...], outputs: tuple[str, ...], **types: TensorType) -> Image:
    names = {x for node in nodes for x in (*node.inputs, *node.outputs)}
    known = {x: types.get(x, TensorType("float32", SHAPE)) for x in names}
    return make_image(Graph(nodes, ("x",), outputs, known), Target(host_isa(), 2))


def answer(image: Image, x: np.ndarray) -> np.ndarray:
    library, pool = machine(host_isa())
    return open_image(image, pool, library).run({"x": x})["y"]


def test_a_chain_needs_one_block() -> None:
    """Each result takes the place of what it is made from."""
    ops = ("Exp", "Neg", "Tanh", "Abs")
    names = ("x", "a", "b", "c", "d")
    nodes = [Node(op, (a,), (b,)) for op, a, b in zip(ops, names, names[1:], strict=False)]
    image = an_image(
        (*nodes, Node("Transpose", ("d",), ("y",))), ("y",), y=TensorType("float32", SHAPE[::-1])
    )
    assert image.arena_bytes == N_BYTES
    assert image.tensors == (Lifetime(N_BYTES, 0, 4),), (
        "one place for all of them, from the first call to the last"
    )
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    np.testing.assert_allclose(answer(image, x), np.abs(np.tanh(-np.exp(x))).T, rtol=1e-5)


@pytest.mark.parametrize("reader", [("a", "b"), ("b", "a")])
def test_what_is_read_again_keeps_its_place(reader: tuple[str, str]) -> None:
    """b must not overwrite a, which the sum reads."""
    nodes = (
        Node("Exp", ("x",), ("a",)),
        Node("Neg", ("a",), ("b",)),
        Node("Sub", reader, ("c",)),
        Node("Transpose", ("c",), ("y",)),
    )
    image = an_image(nodes, ("y",), y=TensorType("float32", SHAPE[::-1]))
    assert image.arena_bytes > N_BYTES
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    sign = 1 if reader == ("a", "b") else -1
    np.testing.assert_allclose(answer(image, x), sign * 2 * np.exp(x).T, rtol=1e-5)


def test_other_sizes_and_broadcasts_are_not_taken_over() -> None:
    """A row is read for every row of the result: its place is not the result's."""
    nodes = (
        Node("ReduceMax", ("x",), ("m",), {"axes": (0,), "keepdims": 1}),
        Node("Exp", ("m",), ("e",)),
        Node("Exp", ("x",), ("a",)),
        Node("Add", ("e", "a"), ("c",)),
        Node("Transpose", ("c",), ("y",)),
    )
    row = TensorType("float32", (1, SHAPE[1]))
    image = an_image(nodes, ("y",), y=TensorType("float32", SHAPE[::-1]), m=row, e=row)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    want = (np.exp(x.max(0, keepdims=True)) + np.exp(x)).T
    np.testing.assert_allclose(answer(image, x), want, rtol=1e-5)


def test_a_tensor_may_have_any_name() -> None:
    """No name of a tensor is taken for the arena."""
    nodes = (
        Node("Exp", ("arena",), ("a",)),
        Node("Transpose", ("a",), ("b",)),
        Node("Transpose", ("b",), ("y",)),
    )
    known = dict.fromkeys(("arena", "a", "y"), TensorType("float32", SHAPE))
    graph = Graph(nodes, ("arena",), ("y",), known | {"b": TensorType("float32", SHAPE[::-1])})
    library, pool = machine(host_isa())
    session = open_image(make_image(graph, Target(host_isa(), 2)), pool, library)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    np.testing.assert_allclose(session.run({"arena": x})["y"], np.exp(x), rtol=1e-5)


def test_tensors_that_share_bytes_while_both_live_are_found() -> None:
    """A compiled directory tells what its arena holds, so that it can be judged without the compiler."""
    nodes = (Node("Exp", ("x",), ("a",)), Node("Neg", ("a",), ("b",)), Node("Sub", ("a", "b"), ("c",)))
    y = TensorType("float32", SHAPE[::-1])
    image = an_image((*nodes, Node("Transpose", ("c",), ("y",))), ("y",), y=y)
    first, second, *others = tensors = arena_tensors(image)
    assert not list(arena_faults(tensors, image.arena_bytes))
    at_once = [first, replace(second, offset=first.offset), *others]
    shared = ["b and c share bytes of the arena at call 1."]
    assert [fault.reason for fault in arena_faults(at_once, image.arena_bytes)] == shared
    assert "of an arena of" in next(arena_faults(tensors, image.arena_bytes - 1)).reason
