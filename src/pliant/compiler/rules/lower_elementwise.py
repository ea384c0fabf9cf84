"""Lower element-wise operators, and chains of them: one pass over memory each."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, Ref, Target, TensorAlias
from pliant.compiler.rules.onnx_elementwise import FORMULAS, expression
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node
from pliant.kernels.emit.dtypes import DTYPES
from pliant.kernels.emit.expression import Expr, constant, inputs
from pliant.kernels.rows.map import MAX_INPUTS, MAX_OUTER, SCRATCH_BYTES, MapArgs, map_ir, map_name, plan_map


def map_calls(
    tree: Expr,
    operands: Sequence[tuple[str, Sequence[int]]],
    out: tuple[str, Sequence[int]],
    label: str = "",
) -> tuple[Call, ...]:
    """out = tree(operands), all given as (tensor, shape): broadcast by numpy's rules to out's shape.

    No call for an empty output. Raises GraphError if a kernel cannot walk these shapes.
    """
    name, shape = out
    assert list(inputs(tree)) == list(range(len(operands))), f"{tree} over {len(operands)} operands"
    if 0 in shape:
        return ()
    if len(operands) > MAX_INPUTS:
        raise GraphError(f"node {label!r} reads {len(operands)} tensors; kernels read at most {MAX_INPUTS}.")
    way = plan_map(shape, [s for _, s in operands])
    if way is None:
        raise GraphError(f"node {label!r} broadcasts along more than {MAX_OUTER} separate dimensions.")
    strides = [step for steps in way.strides for step in (*steps, *[0] * (MAX_OUTER - len(steps)))]
    fields: dict[str, FieldValue] = {
        "x": tuple(Ref(x) for x, _ in operands),
        "out": Ref(name),
        "inner": way.inner,
        "rows": way.rows,
        "rank": len(way.sizes),
        "unit_rows": way.unit_rows,
        "unit_inner": way.unit_inner,
        "chunks": way.chunks,
        "sizes": way.sizes,
        "strides": tuple(strides),
    }
    kernel = Kernel(map_name(tree, way.pattern), partial(map_ir, tree=tree, pattern=way.pattern))
    reads = tuple(dict.fromkeys(x for x, _ in operands))
    sizes = [DTYPES[dtype].itemsize for dtype in inputs(tree).values()]
    alike = [
        x
        for (x, s), n in zip(operands, sizes, strict=True)
        if tuple(s) == tuple(shape) and n == DTYPES[tree.dtype].itemsize
    ]
    return (
        Call(
            kernel,
            MapArgs,
            fields,
            way.n_units,
            reads,
            (name,),
            scratch_bytes=SCRATCH_BYTES,
            label=label,
            in_place=alike[0] if alike else "",
        ),
    )


def _lower(node: Node, graph: Graph, target: Target) -> LoweredNode:
    found = expression(node, graph)
    assert found is not None, node.op
    tree, names = found
    y = node.outputs[0]
    operands = [(x, graph.types[x].shape) for x in names]
    return LoweredNode(calls=map_calls(tree, operands, (y, graph.types[y].shape), node.name))


def _dropout(node: Node, graph: Graph, target: Target) -> LoweredNode:
    """At inference it drops nothing: the mask, if it is used, is true everywhere."""
    given = [graph.constants.get(x) if x else np.zeros(1) for x in (*node.inputs[1:], "", "")[:2]]
    ratio, training = given if len(node.inputs) > 1 and node.inputs[1] else (np.full(1, 0.5), given[1])
    if training is None or (training.any() and (ratio is None or ratio.any())):
        raise GraphError(f"node {node.name!r} (Dropout) is in training mode; export for inference.")
    mask = (*node.outputs, "")[1]
    calls = map_calls(constant(1, "bool"), (), (mask, graph.types[mask].shape), node.name) if mask else ()
    aliases = (TensorAlias(node.outputs[0], node.inputs[0]),) if node.outputs[0] else ()
    return LoweredNode(calls, aliases)


RULES = {**dict.fromkeys(FORMULAS, _lower), "Dropout": _dropout}
