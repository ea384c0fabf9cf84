"""Lower ArgMax and ArgMin."""

from collections.abc import Sequence
from functools import partial
from math import prod

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, Ref, Target
from pliant.compiler.rules.move.lower_move import axis_of
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node
from pliant.kernels.rows.extremum import UNIT_COLUMNS, Extremum, ExtremumArgs, extremum_ir


def extremum_call(
    x: tuple[str, Sequence[int], str], axis: int, out: str, *, is_largest: bool, is_last: bool, label: str
) -> tuple[Call, ...]:
    """out (int64) = where x, given as (tensor, shape, dtype), is largest or smallest along an axis."""
    name, shape, dtype = x
    outer, n, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    if outer * inner == 0:
        return ()
    if n == 0:
        raise GraphError(f"node {label!r} looks for an extremum along axis {axis}, which is empty.")
    extremum = Extremum(dtype, is_largest, is_last, inner == 1)
    kernel = Kernel(extremum.name, partial(extremum_ir, extremum=extremum))
    fields: dict[str, FieldValue] = {"x": Ref(name), "out": Ref(out), "n": n, "inner": inner}
    n_units = outer * -(-inner // UNIT_COLUMNS)
    grain = max(1, 4096 // (n * min(inner, UNIT_COLUMNS)))
    return (Call(kernel, ExtremumArgs, fields, n_units, (name,), (out,), grain, label=label),)


def _lower(node: Node, graph: Graph, target: Target) -> LoweredNode:
    type_ = graph.types[node.inputs[0]]
    axis = axis_of(node, len(type_.shape))
    is_last = node.flag("select_last_index")
    given = (node.inputs[0], type_.shape, type_.dtype)
    is_largest = node.op == "ArgMax"
    return LoweredNode(
        extremum_call(given, axis, node.outputs[0], is_largest=is_largest, is_last=is_last, label=node.name)
    )


RULES = dict.fromkeys(("ArgMax", "ArgMin"), _lower)
