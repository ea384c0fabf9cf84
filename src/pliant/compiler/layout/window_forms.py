"""Forms of convolutions, pools and resizes: channels first or last, rows and columns exchanged or not.

An image with exchanged axes is convolved with the exchanged kernel, a constant made before the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from pliant.compiler.layout.layout_problem import Layout
from pliant.compiler.layout.layouts import has_gap, identity, physical_type, without_gap
from pliant.compiler.layout.operator_family import (
    Layouts,
    NodeReplacement,
    OperatorFamily,
    tensors_in,
    tensors_out,
)
from pliant.compiler.layout.pixel_forms import realise_pixels, supports_gaps
from pliant.compiler.passes.mark_winograd import mark_winograd
from pliant.compiler.rewrite.rewrite import unused_name
from pliant.ir.graph import Graph, Node, TensorType

_NAMES: Mapping[Layout, tuple[str, bool]] = {
    "012": ("nchw", False),
    "021": ("nhwc", False),
    "0123": ("nchw", False),
    "0231": ("nhwc", False),
    "0132": ("nchw", True),
    "0321": ("nhwc", True),
    "01234": ("nchw", False),
    "02341": ("nhwc", False),
}
"""The kernels' name of each layout, and whether rows and columns are exchanged."""

WINOGRAD = "winograd"
LOOPS = ("ijk", "ikj")
"""Loop orders besides the tiled one: the sum innermost, or the row of the result innermost."""


def _layouts(rank: int) -> tuple[Layout, ...]:
    return tuple(layout for layout in _NAMES if len(layout) == rank)


def _preferred_layouts(node: Node, graph: Graph) -> Mapping[str, Sequence[Layout]]:
    if "layout" in node.attributes or "x_layout" in node.attributes:
        return {}
    names = (*tensors_in(node, graph)[:1], *tensors_out(node)[:1])
    return {x: _layouts(len(graph.types[x].shape)) for x in names}


def _is_plain(node: Node, graph: Graph) -> bool:
    return (
        all(name in graph.constants for name in node.inputs[1:3] if name)
        and node.inputs[0] not in graph.constants
        and graph.types[node.inputs[0]].dtype == "float32"
        and "x_layout" not in node.attributes
    )


def _conv_forms(
    node: Node, graph: Graph, candidates: Mapping[str, Sequence[Layout]]
) -> Sequence[tuple[Layouts, str]]:
    """Any layouts of input and output, exchanged or not; the residual has the layout of the output."""
    if not _is_plain(node, graph):
        return ()
    x, y = node.inputs[0], node.outputs[0]
    rank = len(graph.types[x].shape)
    residual = node.inputs[3] if len(node.inputs) > 3 else ""
    forms: list[tuple[Layouts, str]] = []
    for a in _layouts(rank):
        for b in _layouts(rank):
            if _NAMES[a][1] != _NAMES[b][1] or (residual == x and a != b):
                continue
            layouts = {x: a, y: b} | ({residual: b} if residual else {})
            forms.append((layouts, ""))
            if _can_winograd(node, graph, layouts):
                forms.append((layouts, WINOGRAD))
    default = {t: identity(rank) for t in (x, y, residual) if t}
    if can_loop(node):
        forms += [(default, order) for order in LOOPS]
    return forms + _gap_forms(node, graph, candidates)


def _gap_forms(
    node: Node, graph: Graph, candidates: Mapping[str, Sequence[Layout]]
) -> list[tuple[Layouts, str]]:
    """Channels last, with a gap after the channels of the input, the output or both."""
    if not supports_gaps(node, graph):
        return []
    x, y = node.inputs[0], node.outputs[0]
    last = [[layout for layout in candidates.get(t, ()) if _is_last(layout)] for t in (x, y)]
    forms: list[tuple[Layouts, str]] = []
    for a, b in product(*last):
        layouts = {x: a, y: b} | dict.fromkeys(node.inputs[3:], b)
        if (has_gap(a) or has_gap(b)) and layouts[x] == a:
            forms.append((layouts, ""))
    return forms


def _conv_follow(node: Node, graph: Graph, tensor: str, layout: Layout) -> Layouts | None:
    """A gap after the channels of both input and output; other layouts may differ."""
    is_alike = has_gap(layout) and _is_last(layout) and _is_plain(node, graph)
    if not (is_alike and supports_gaps(node, graph)):
        return None
    return dict.fromkeys((*tensors_in(node, graph), *tensors_out(node)), layout)


def _is_last(layout: Layout) -> bool:
    """Whether the layout is NHWC without exchanged axes."""
    return _NAMES.get(without_gap(layout)) == ("nhwc", False)


def _can_winograd(node: Node, graph: Graph, layouts: Layouts) -> bool:
    """Whether the pass `winograd` applies to the convolution in these layouts."""
    if graph.constants[node.inputs[1]].shape[2:] != (3, 3) or "0123" in layouts.values():
        return False
    made = _conv(node, graph, layouts, "")
    names = {x for x in (*made.nodes[0].inputs, *made.nodes[0].outputs) if x}
    constants = {x: a for x, a in {**graph.constants, **made.constants}.items() if x in names}
    types = {x: physical_type(graph.types[x], layout) for x, layout in layouts.items()}
    types |= {x: TensorType(a.dtype.name, a.shape) for x, a in constants.items()}
    inputs = tuple(x for x in layouts if x != node.outputs[0])
    sample = Graph(made.nodes, inputs, node.outputs, types, constants)
    return mark_winograd(sample) is not sample


def can_loop(node: Node) -> bool:
    """Whether plain loops followed by an activation can compute the convolution."""
    is_plain = node.text("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    return is_plain and node.text("activation", "") in ("", "relu", "clip")


def _conv(node: Node, graph: Graph, layouts: Layouts, variant: str) -> NodeReplacement:
    if variant in LOOPS:
        return _realise_loops(node, graph, variant)
    if any(has_gap(layout) for layout in layouts.values()):
        return realise_pixels(node, graph, layouts)
    (x_name, is_exchanged), (y_name, _) = _NAMES[layouts[node.inputs[0]]], _NAMES[layouts[node.outputs[0]]]
    attributes = {**node.attributes, "x_layout": x_name, "y_layout": y_name}
    if variant == WINOGRAD:
        attributes["algorithm"] = WINOGRAD
    node = replace(node, op="FusedConv", attributes=attributes)
    if not is_exchanged:
        return NodeReplacement((node,))
    w = node.inputs[1]
    exchanged = f"{w}@0132"
    inputs = (node.inputs[0], exchanged, *node.inputs[2:])
    made = replace(_swap_axes(node), inputs=inputs)
    return NodeReplacement((made,), {exchanged: np.ascontiguousarray(graph.constants[w].swapaxes(2, 3))})


def _swap_axes(node: Node) -> Node:
    """The node with the last two axes of its window exchanged."""
    found = dict(node.attributes)
    for name in ("kernel_shape", "strides", "dilations", "pads"):
        values = node.integers(name, ())
        if values:
            pairs = [values[i : i + 2][::-1] for i in range(0, len(values), 2)]
            found[name] = tuple(n for pair in pairs for n in pair)
    return replace(node, attributes=found)


def _realise_loops(node: Node, graph: Graph, order: str) -> NodeReplacement:
    """Pad, convolve in plain loops, then apply the operators that were fused into it."""
    x, w, bias, residual = (*node.inputs, "", "")[:4]
    y = node.outputs[0]
    made = graph.types[x]
    rank = len(made.shape) - 2
    pads = node.integers("pads", (0,) * (2 * rank))
    is_padded = any(pads) and node.text("auto_pad", "NOTSET") == "NOTSET"
    nodes, types = list[Node](), dict[str, TensorType]()
    constants: dict[str, np.ndarray] = {}
    if is_padded:
        before, after = pads[:rank], pads[rank:]
        amounts, padded = (unused_name(graph, f"{y}.{part}") for part in ("pads", "padded"))
        constants[amounts] = np.array((0, 0, *before, 0, 0, *after), np.int64)
        shape = [n + a + b for n, a, b in zip(made.shape[2:], before, after, strict=True)]
        types[padded] = TensorType(made.dtype, (*made.shape[:2], *shape))
        nodes.append(Node("Pad", (x, amounts), (padded,), {}, node.name))
        x = padded
    kept = {k: v for k, v in node.attributes.items() if k in ("strides", "dilations", "group")}
    steps: list[tuple[str, tuple[str, ...]]] = []
    if bias:
        # From the bias's own name: a folded norm names its bias after its result.
        column = unused_name(graph, f"{bias}@{rank}d")
        constants[column] = graph.constants[bias].reshape(-1, *(1,) * rank)
        steps.append(("Add", (column,)))
    if residual:
        steps.append(("Add", (residual,)))
    if node.text("activation", "") == "relu":
        steps.append(("Relu", ()))
    if node.text("activation", "") == "clip":
        low, high = (unused_name(graph, f"{y}.{name}") for name in ("low", "high"))
        constants |= {x: np.array(node.real(n), np.float32) for x, n in ((low, "low"), (high, "high"))}
        steps.append(("Clip", (low, high)))
    first = Node("LoopConv", (x, w), (y,), {**kept, "order": order}, node.name)
    behind, more = chain_nodes(first, steps, graph)
    return NodeReplacement((*nodes, *behind), constants, types | more)


def chain_nodes(
    first: Node, steps: Sequence[tuple[str, tuple[str, ...]]], graph: Graph
) -> tuple[tuple[Node, ...], dict[str, TensorType]]:
    """`first`, then operators on its result, each of its type; the last one makes the output of `first`.

    The names of the tensors between them are new to `graph`.
    """
    y = first.outputs[0]
    names = [unused_name(graph, f"{y}.{i}") for i in range(len(steps))]
    makes = [*names, y]
    nodes = [replace(first, outputs=(makes[0],))]
    for i, (op, others) in enumerate(steps):
        nodes.append(Node(op, (makes[i], *others), (makes[i + 1],), {}, first.name))
    return tuple(nodes), dict.fromkeys(names, graph.types[y])


def _pool_follow(node: Node, graph: Graph, tensor: str, layout: Layout) -> Layouts | None:
    x, y = node.inputs[0], node.outputs[0]
    is_turned = "layout" in node.attributes
    if x in graph.constants or len(tensors_out(node)) > 1 or layout not in _NAMES or is_turned:
        return None
    return {x: layout, y: layout}


def _pool(node: Node, graph: Graph, layouts: Layouts, variant: str) -> NodeReplacement:
    name, is_exchanged = _NAMES[layouts[node.inputs[0]]]
    named = replace(node, attributes={**node.attributes, "layout": name})
    return NodeReplacement((_swap_axes(named) if is_exchanged else named,))


def _resize_follow(node: Node, graph: Graph, tensor: str, layout: Layout) -> Layouts | None:
    given = node.inputs[1:]
    is_exchanged = _NAMES.get(layout, ("", True))[1]
    if is_exchanged or any(name and name not in graph.constants for name in given):
        return None
    return _pool_follow(node, graph, tensor, layout)


_CONV = OperatorFamily(_conv, _conv_follow, _conv_forms, _preferred_layouts, has_gap_forms=True)
_POOL = OperatorFamily(_pool, _pool_follow, preferred=_preferred_layouts)
_RESIZE = OperatorFamily(_pool, _resize_follow)

FAMILIES: Mapping[str, OperatorFamily] = {
    **dict.fromkeys(("Conv", "FusedConv"), _CONV),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _POOL),
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"), _POOL),
    **dict.fromkeys(("Resize", "Upsample"), _RESIZE),
}
