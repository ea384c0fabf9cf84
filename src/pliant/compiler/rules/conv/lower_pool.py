"""Lower pooling, local and global. The attribute `layout` is an extension of pliant: a "nhwc" tensor's type
has its channels last.
"""

from dataclasses import replace
from functools import partial
from math import prod

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, Ref, Target
from pliant.compiler.rules.conv.window_extents import Window, axis_fields, window
from pliant.compiler.rules.lower_reduce import reduce_call, reduction_expressions
from pliant.compiler.rules.move.copy_calls import grain_of
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.conv.conv_args import ImageLayout
from pliant.kernels.pool import pool_planes, pool_rows
from pliant.kernels.pool.pool_window import ELEMENTS, PoolArgs, PoolForm, PoolReduction, pool_ir

_REDUCTIONS: dict[str, PoolReduction] = {
    "MaxPool": "max",
    "AveragePool": "average",
    "LpPool": "lp",
    "GlobalLpPool": "lp",
}
_MOST_TAPS = 7
"""The largest window height and width with specialised kernels."""
_SMALL_BYTES = 64 << 10
"""Bytes of planes that are transposed together, with their results; larger planes have rows of whole
vectors.
"""
_OF_WHOLE_IMAGES = {"GlobalMaxPool": "ReduceMax", "GlobalAveragePool": "ReduceMean"}


def _pool(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x = graph.types[node.inputs[0]]
    layout = layout_of(node)
    space = x.shape[2:] if layout == "nchw" else x.shape[1:-1]
    view = window(node, node.integers("kernel_shape", ()), space)
    return _reduce(node, graph, target, view, x, space)


def _global(node: Node, graph: Graph, target: Target) -> LoweredNode:
    """Global pooling as a reduction over the image; for a p-norm, as a window of the image's size, with its
    dimensions merged.
    """
    x = graph.types[node.inputs[0]]
    first, end = (2, len(x.shape)) if layout_of(node) == "nchw" else (1, len(x.shape) - 1)
    reduction = _OF_WHOLE_IMAGES.get(node.op)
    if reduction is not None:
        given = (node.inputs[0], x.shape)
        terms = reduction_expressions(reduction, x.dtype)
        return LoweredNode(reduce_call(given, range(first, end), node.outputs[0], terms, label=node.name))
    flat = (prod(x.shape[first:end]),)
    return _reduce(node, graph, target, Window(flat, (1,), (1,), (0,), (0,)), x, flat)


def _reduce(
    node: Node, graph: Graph, target: Target, view: Window, x: TensorType, space: tuple[int, ...]
) -> LoweredNode:
    layout = layout_of(node)
    y = graph.types[node.outputs[0]]
    reduction = _REDUCTIONS[node.op]
    indices = node.outputs[1] if len(node.outputs) > 1 else ""
    _check(node, x, reduction, bool(indices) and layout == "nhwc")
    out = y.shape[2:] if layout == "nchw" else y.shape[1:-1]
    out = out if len(out) == len(space) else (1,)
    stride = view.strides[-1]
    form = PoolForm(reduction, x.dtype, layout, stride if stride in (1, 2) else 0, bool(indices))
    if form.is_plain:
        form = replace(form, taps=_taps(view))
    n_planes = prod(x.shape[:2])
    columns = pool_rows.line_columns(space[-1], view.begins[-1], out[-1], stride, view.extents()[-1])
    line = pool_rows.line_floats(columns)
    turned_bytes = pool_planes.scratch_bytes(target.isa, prod(space), prod(out), columns, out[-1])
    is_small = turned_bytes <= _SMALL_BYTES and n_planes >= target.isa.lanes
    form = replace(form, is_by_planes=form.is_plain and is_small)
    channels = n_planes if layout == "nchw" else x.shape[-1]
    fields: dict[str, FieldValue] = {
        "x": Ref(node.inputs[0]),
        "y": Ref(node.outputs[0]),
        "indices": Ref(indices) if indices else None,
        "channels": channels,
        **axis_fields("in", space, 1),
        **axis_fields("out", out, 1),
        **view.fields(),
        **axis_fields("end_pad", view.ends, 0),
        "counts_pads": node.integer("count_include_pad", 0),
        "power": node.integer("p", 2),
        "is_column_major": node.integer("storage_order", 0),
        "line": line,
    }
    scratch_bytes, units, generate = 0, n_planes if layout == "nchw" else x.shape[0] * prod(out[:-1]), pool_ir
    if form.is_by_planes:
        scratch_bytes, units = turned_bytes, -(-n_planes // target.isa.lanes)
        generate = pool_planes.pool_planes_ir
    elif form.is_by_rows:
        scratch_bytes, generate = (
            pool_rows.scratch_bytes(line, prod(out[-2:-1]), out[-1]),
            pool_rows.pool_rows_ir,
        )
    n_units = units if y.size else 0
    call = Call(
        Kernel(form.name, partial(generate, form=form)),
        PoolArgs,
        fields,
        n_units=n_units,
        reads=(node.inputs[0],),
        writes=tuple(name for name in node.outputs if name),
        grain=grain_of(n_units, x.n_bytes + y.n_bytes),
        scratch_bytes=scratch_bytes,
        label=node.label,
    )
    return LoweredNode((call,))


def _taps(view: Window) -> tuple[int, int]:
    """Height and width of a window with a specialised kernel, (0, 0) for any other."""
    height, width = (1, *view.kernel)[-2:]
    is_near = set(view.dilations) == {1} and len(set(view.strides)) == 1
    is_known = len(view.kernel) <= 2 and max(height, width) <= _MOST_TAPS and is_near
    return (height, width) if is_known else (0, 0)


def layout_of(node: Node) -> ImageLayout:
    """The dimension order in the attribute `layout`; channels first by default."""
    value = node.text("layout", "nchw")
    if value == "nchw":
        return "nchw"
    assert value == "nhwc", f"no layout {value}"
    return "nhwc"


def _check(node: Node, x: TensorType, reduction: PoolReduction, wants_late_indices: bool) -> None:
    known = ELEMENTS if reduction == "max" else ("float32", "float64")
    if x.dtype not in known:
        raise GraphError(f"node {node.label!r}: no kernel pools {x.dtype}; it can be {sorted(known)}.")
    if wants_late_indices:
        raise GraphError(f"node {node.label!r}: indices are counted in channels-first images only.")


RULES = {
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"), _global),
}
