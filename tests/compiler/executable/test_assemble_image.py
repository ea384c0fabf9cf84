"""Places of a lowered graph: what may be written in place is, and nothing else shares bytes."""

import numpy as np

from pliant.compiler.executable.assemble_image import Image, assemble
from pliant.compiler.executable.call import Call, Kernel, LoweredNode, Ref, RowExtent, Target, TensorAlias
from pliant.ir.executable import ARENA
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import X86_64
from pliant.kernels.rows.rowwise import RowArgs

KERNEL = Kernel("nothing", lambda isa: "")
ROWS = TensorType("float32", (4, 16))


def image(steps: dict[str, tuple[str, ...]], outputs: tuple[str, ...]) -> Image:
    """Each step reads its tensors and writes its name, in place if it reads but one; x is the input."""
    nodes = tuple(Node("step", inputs, (y,)) for y, inputs in steps.items())
    graph = Graph(nodes, ("x",), outputs, dict.fromkeys(("x", *steps), ROWS))
    calls = [
        Call(
            KERNEL,
            RowArgs,
            {"x": Ref(inputs[0])},
            4,
            inputs,
            (y,),
            in_place=inputs[0] if len(set(inputs)) == 1 else "",
        )
        for y, inputs in steps.items()
    ]
    return assemble(graph, [LoweredNode((call,)) for call in calls], Target(X86_64))


def test_a_chain_runs_in_one_tensor() -> None:
    """Each step may overwrite what only it reads: a chain needs no more than the first and the last."""
    made = image({"a": ("x",), "b": ("a",), "c": ("b",), "y": ("c",)}, ("y",))
    assert made.arena_bytes == 0
    assert {made.places[t].space for t in "abc"} == {"y"}


def test_what_is_read_later_is_not_overwritten() -> None:
    """A residual is the reason why a norm's input may have to outlive it."""
    made = image({"a": ("x",), "b": ("a",), "c": ("b", "a"), "y": ("c",)}, ("y",))
    assert (made.places["a"].space, made.places["a"].offset) != (
        made.places["b"].space,
        made.places["b"].offset,
    )


def test_inputs_outputs_and_operands_read_twice_are_not_overwritten() -> None:
    """Inputs are the caller's, outputs are its answer, and a row read as a bias must last for all rows."""
    made = image({"a": ("x",), "b": ("a",), "y": ("b", "b")}, ("a", "y"))
    assert made.places["a"].space == "a"
    assert made.places["x"].space == "x"
    assert made.places["b"].space == ARENA


def test_aliases_follow_what_was_merged() -> None:
    """A reshape of a tensor that moved into another's bytes moves along."""
    graph = Graph(
        (Node("step", ("x",), ("a",)), Node("Reshape", ("a",), ("b",)), Node("step", ("a",), ("y",))),
        ("x",),
        ("y",),
        dict.fromkeys("xaby", ROWS),
    )
    first, last = (Call(KERNEL, RowArgs, {}, 4, (r,), (w,), in_place=r) for r, w in (("x", "a"), ("a", "y")))
    parts = [LoweredNode((first,)), LoweredNode(aliases=(TensorAlias("b", "a", 64),)), LoweredNode((last,))]
    made = assemble(graph, parts, Target(X86_64))
    assert (made.places["b"].space, made.places["b"].offset) == ("y", 64)


def test_an_output_replaces_an_input_that_nothing_reads_any_more() -> None:
    """The local engine's layers write their output where their input stood."""
    assert image({"a": ("x",), "b": ("a", "x"), "y": ("b", "a")}, ("y",)).may_replace("y", "x")
    assert not image({"a": ("x",), "y": ("a", "x")}, ("y",)).may_replace("y", "x")


def test_shares_follow_the_extent() -> None:
    """Calls without an extent stay whole: a head has one row whatever the sequence."""
    whole = Call(KERNEL, RowArgs, {}, 7, ("x",), ("a",), grain=2)
    rows = Call(
        KERNEL, RowArgs, {}, 4, ("a",), ("y",), extent=RowExtent((), lambda lengths: (sum(lengths), 1))
    )
    graph = Graph(
        (Node("step", ("x",), ("a",)), Node("step", ("a",), ("y",))),
        ("x",),
        ("y",),
        dict.fromkeys("xay", ROWS),
    )
    made = assemble(graph, [LoweredNode((whole,)), LoweredNode((rows,))], Target(X86_64))
    assert np.array_equal(made.shares((3, 1)), [[7, 2], [4, 1]])
