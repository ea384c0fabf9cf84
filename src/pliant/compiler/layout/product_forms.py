"""Forms of matrix products and attention: operands read through strides, results written through them.

A result with rows innermost is computed as the product of the transposed operands in reverse order.
"""

from collections.abc import Mapping, Sequence
from itertools import product

from pliant.compiler.layout.layout_problem import Layout
from pliant.compiler.layout.layouts import GAP, gap_of, identity, layout_of, order, strides, view_in_layout
from pliant.compiler.layout.operator_family import (
    Layouts,
    NodeReplacement,
    OperatorFamily,
    default_layouts,
    tensors_in,
)
from pliant.compiler.layout.window_forms import LOOPS, chain_nodes
from pliant.compiler.rewrite.view import View, input_view
from pliant.ir.graph import Attribute, Graph, Node, TensorType

_MAX_FORMS = 24


def _operand(node: Node, graph: Graph, i: int, layout: Layout) -> View | None:
    """The node's view of operand 0 or 1 with its tensor in `layout` and its batch split by `_batch`."""
    view = _cut(_attribute_view(node, graph, i), _batch(node, graph))
    return view_in_layout(view, graph.types[node.inputs[i]], layout)


def _attribute_view(node: Node, graph: Graph, i: int) -> View:
    """The view of operand 0 or 1 in the node's attributes."""
    x = node.inputs[i]
    view = input_view(graph, x, node.integers(f"{'ab'[i]}_view", None))
    if node.op == "Gemm" and node.flag(f"trans{'AB'[i]}"):
        view = View(x, 0, view.shape[::-1], view.strides[::-1])
    return view


def _batch(node: Node, graph: Graph) -> tuple[tuple[int, ...], ...]:
    """The parts of each batch dimension that crosses rows of an operand's tensor.

    In another layout such a dimension has no single stride, but its parts do.
    """
    views = [_attribute_view(node, graph, i) for i in (0, 1)]
    whole = tuple((n,) for n in views[0].shape[:-2])
    if views[0].shape[:-2] != views[1].shape[:-2]:
        return ()
    cuts = [_cuts(view, graph.types[view.tensor]) for view in views]
    return tuple(next((c for c in dim if c != n), n) for n, *dim in zip(whole, *cuts, strict=True))


def _cuts(view: View, type_: TensorType) -> list[tuple[int, ...]]:
    """Each batch dimension split into steps between rows and steps within a row, or unsplit."""
    found: list[tuple[int, ...]] = []
    for n, step in zip(view.shape[:-2], view.strides[:-2], strict=True):
        rows = [s * m for m, s in zip(type_.shape, type_.strides, strict=True) if step and step % s == 0]
        turns = rows[0] // step if rows and rows[0] % step == 0 else n
        found.append((n // turns, turns) if 1 < turns < n and n % turns == 0 else (n,))
    return found


def _cut(view: View, batch: Sequence[tuple[int, ...]]) -> View:
    for axis in reversed(range(len(batch))):
        view = view.split(axis, batch[axis])
    return view


def depth(node: Node, graph: Graph) -> int:
    """The length of the sum."""
    return _attribute_view(node, graph, 0).shape[-1]


def _is_plain(node: Node, graph: Graph) -> bool:
    """Whether the node is equivalent to a FusedMatMul."""
    y = graph.types[node.outputs[0]]
    if y.dtype != "float32" or y.size == 0 or "y_view" in node.attributes:
        return False
    if any(len(graph.types[x].shape) < 2 for x in node.inputs[:2]):
        return False
    if node.op != "Gemm":
        return True
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if not bias:
        return True
    is_row = graph.types[bias].size == y.shape[-1] == graph.types[bias].shape[-1]
    return is_row and node.real("beta", 1.0) == 1.0


def _innermost(layout: Layout) -> int:
    return order(layout)[-1]


def _propose(
    node: Node, graph: Graph, candidates: Mapping[str, Sequence[Layout]]
) -> Sequence[tuple[Layouts, str]]:
    if not _is_plain(node, graph):
        return ()
    y = node.outputs[0]
    default = default_layouts(node, graph)
    rank = len(graph.types[y].shape)
    moving = [*dict.fromkeys(x for x in node.inputs[:2] if x not in graph.constants), y]
    options = [candidates.get(x) or (default[x],) for x in moving]
    found: list[tuple[int, Layouts, str]] = []
    for chosen in product(*options):
        layouts = default | dict(zip(moving, chosen, strict=True))
        if _residual(node) in graph.constants and layouts[y] != default[y]:
            continue  # a residual is read through the strides of the result, and a constant is dense
        if _residual(node) and _residual(node) in default:
            if _residual(node) in moving[:-1] and layouts[_residual(node)] != layouts[y]:
                continue
            layouts |= {_residual(node): layouts[y]}
        others = [x for x in default if x not in (*moving, _residual(node))]
        if any(layouts[x] != default[x] for x in others) or not _can_run(node, graph, layouts, rank):
            continue
        found.append((sum(layouts[x] != default[x] for x in moving), layouts, ""))
    found.sort(key=lambda form: form[0])
    return [form[1:] for form in found[:_MAX_FORMS]] + [(default, o) for o in LOOPS]


def _residual(node: Node) -> str:
    return node.inputs[3] if len(node.inputs) > 3 else ""


def _can_run(node: Node, graph: Graph, layouts: Layouts, rank: int) -> bool:
    views = [_operand(node, graph, i, _layout_of(layouts, graph, node.inputs[i])) for i in (0, 1)]
    for view in views:
        if view is None or 1 not in view.strides[-2:]:  # packing anything else is slow
            return False
    y = layouts[node.outputs[0]]
    if _innermost(y) == rank - 1:
        return True
    has_more = any(x for x in node.inputs[2:]) and node.op != "MatMul"
    return _innermost(y) == rank - 2 and not has_more


def _layout_of(layouts: Layouts, graph: Graph, tensor: str) -> Layout:
    return layouts.get(tensor) or identity(len(graph.types[tensor].shape))


def _realise(node: Node, graph: Graph, layouts: Layouts, variant: str) -> NodeReplacement:
    a, b = (_operand(node, graph, i, _layout_of(layouts, graph, node.inputs[i])) for i in (0, 1))
    assert a is not None, node
    assert b is not None, node
    y = node.outputs[0]
    attributes: dict[str, Attribute] = {
        k: v for k, v in node.attributes.items() if k in ("alpha", "activation")
    }
    if variant:
        return _realise_loops(node, graph, variant)
    type_, layout = graph.types[y], layouts[y]
    out = _cut(View(y, 0, type_.shape, strides(type_, layout)), _batch(node, graph))
    inputs = (a.tensor, b.tensor, *node.inputs[2:])
    if _innermost(layout) != len(type_.shape) - 1:
        a, b, out = _transpose(b), _transpose(a), _transpose(out)
        inputs = (a.tensor, b.tensor)
    attributes |= {"a_view": a.attribute, "b_view": b.attribute}
    if layout != identity(len(type_.shape)):
        attributes["y_view"] = out.attribute
    return NodeReplacement((Node("FusedMatMul", inputs, node.outputs, attributes, node.name),))


def _realise_loops(node: Node, graph: Graph, variant: str) -> NodeReplacement:
    """The product alone in plain loops, then the operators that were fused into it."""
    a, b = (_attribute_view(node, graph, i) for i in (0, 1))
    bias, residual = (*node.inputs[2:], "", "")[:2]
    steps: list[tuple[str, tuple[str, ...]]] = [("Add", (x,)) for x in (bias, residual) if x]
    activation = node.text("activation", "")
    if activation:
        steps.append(({"relu": "Relu", "tanh": "Tanh"}.get(activation, "Gelu"), ()))
    first = Node(
        "LoopMatMul",
        (a.tensor, b.tensor),
        node.outputs,
        {
            "a_view": a.attribute,
            "b_view": b.attribute,
            "order": variant,
            "alpha": node.real("alpha", 1.0),
        },
        node.name,
    )
    nodes, types = chain_nodes(first, steps, graph)
    if activation == "gelu_tanh":
        last = nodes[-1]
        approximate = Node("Gelu", last.inputs, last.outputs, {"approximate": "tanh"}, last.name)
        nodes = (*nodes[:-1], approximate)
    return NodeReplacement(nodes, {}, types)


def _transpose(v: View) -> View:
    return View(
        v.tensor,
        v.offset,
        (*v.shape[:-2], v.shape[-1], v.shape[-2]),
        (*v.strides[:-2], v.strides[-1], v.strides[-2]),
    )


def _preferred_layouts(node: Node, graph: Graph) -> Mapping[str, Sequence[Layout]]:
    """Wished layouts: contiguous columns, with and without a gap between rows, or contiguous rows."""
    if not _is_plain(node, graph):
        return {}
    found = {}
    for x in (*tensors_in(node, graph)[:2], node.outputs[0]):
        rank = len(graph.types[x].shape)
        if rank >= 2 and x not in graph.constants:
            swapped, parted = layout_of((*range(rank - 2), rank - 1, rank - 2)), identity(rank) + GAP
            # A product's row that spans several of the tensor's rows cannot skip the gaps.
            is_read = [i for i in (0, 1) if node.inputs[i] == x]
            has_gap_forms = all(_operand(node, graph, i, parted) is not None for i in is_read)
            # A gap longer than the row is not a candidate: it would move more bytes than the row.
            is_long = graph.types[x].shape[-1] >= gap_of(graph.types[x], parted)
            found[x] = (swapped, parted) if has_gap_forms and is_long else (swapped,)
    return found


_READS = ("q", "k", "v", "mask")


def _attention_forms(
    node: Node, graph: Graph, candidates: Mapping[str, Sequence[Layout]]
) -> Sequence[tuple[Layouts, str]]:
    """Queries, keys and values in any layout with contiguous columns, changed one at a time or all
    together.
    """
    default = default_layouts(node, graph)
    inputs = tensors_in(node, graph)
    alone = [{x: layout} for x in inputs for layout in candidates.get(x, ())]
    layouts_of_any = {layout: None for option in alone for layout in option.values()}
    alike = [{x: one for x in inputs if one in candidates.get(x, ())} for one in layouts_of_any]
    forms: list[tuple[Layouts, str]] = []
    for option in (*alone, *alike):
        layouts = default | option
        views = _attention_views(node, graph, layouts)
        if views is not None and all(v.strides[-1] == 1 for v in views.values()):
            forms.append((layouts, ""))
    return forms


def _attention_views(node: Node, graph: Graph, layouts: Layouts) -> dict[str, View] | None:
    views = {}
    for name, x in zip(_READS, node.inputs, strict=False):
        view = input_view(graph, x, node.integers(f"{name}_view", None))
        moved = view_in_layout(view, graph.types[x], _layout_of(layouts, graph, x))
        if moved is None:
            return None
        views[name] = moved
    return views


def _attention(node: Node, graph: Graph, layouts: Layouts, variant: str) -> NodeReplacement:
    views = _attention_views(node, graph, layouts)
    assert views is not None, node
    attributes = {**node.attributes, **{f"{name}_view": v.attribute for name, v in views.items()}}
    return NodeReplacement((Node(node.op, node.inputs, node.outputs, attributes, node.name),))


FAMILIES: Mapping[str, OperatorFamily] = {
    **dict.fromkeys(
        ("MatMul", "FusedMatMul", "Gemm"),
        OperatorFamily(_realise, propose=_propose, preferred=_preferred_layouts),
    ),
    "FusedAttention": OperatorFamily(_attention, propose=_attention_forms),
}
