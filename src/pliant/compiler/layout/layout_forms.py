"""Enumerate the layouts of every tensor and the forms of every operator (FluidML 3).

`build_problem(graph)` is the problem without times; `measurement_keys` lists the measurements that it needs,
shared by equal operators; `with_times` adds the times.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod

import numpy as np

from pliant.compiler.layout import move_forms as moving
from pliant.compiler.layout import product_forms as products
from pliant.compiler.layout import window_forms as windows
from pliant.compiler.layout.layout_problem import Layout, LayoutProblem, Operator, OperatorForm
from pliant.compiler.layout.layouts import (
    has_gap,
    identity,
    order,
    permutation_between,
    physical_type,
    same_bytes,
)
from pliant.compiler.layout.operator_family import (
    Layouts,
    NodeReplacement,
    OperatorFamily,
    default_layouts,
    form_of,
    layouts_of,
    tensors_in,
    tensors_out,
)
from pliant.compiler.layout.reorders import reorder
from pliant.ir.graph import Graph, Node, TensorType

FAMILIES: Mapping[str, OperatorFamily] = {**moving.FAMILIES, **windows.FAMILIES, **products.FAMILIES}

_MAX_LAYOUTS, _MAX_RANK, _ROUNDS = 6, 6, 3
_SMALL = 16
"""Constants of up to this many numbers are part of a form's key: exponents, axes, shapes."""

_LOOPED_PRODUCTS = 1 << 18
"""Plain loops are tried up to this many multiplications; beyond, tiles are much faster."""

CLEAR_RATIO = 0.95
"""A form counts as faster than the default only below this fraction of its time.

Two measurements of a form differ by 2 % in the median, and by 10 % in one of ten cases on a busy machine.
"""
_TIE_S = 1e-9
"""The extra cost of a form that is as fast as the default, so that the default wins ties."""

MeasuredTimes = Mapping[str, float]
"""Seconds of a form or a reorder, by its key."""


@dataclass(frozen=True, slots=True)
class MeasurementKeys:
    """The needed measurements: a key for each (operator, number of its form) and (edge, from, to)."""

    forms: Mapping[tuple[str, int], str]
    reorders: Mapping[tuple[str, Layout, Layout], str]
    samples: Mapping[str, Graph]
    """A graph of one operator to measure, by key."""


def build_problem(graph: Graph) -> LayoutProblem:
    """The layouts of every tensor and the forms of every operator, all times zero.

    A form's layouts may include others than a tensor's candidates, since the caller's tensors are always
    row-major.
    """
    layouts = _propagate_layouts(graph)
    operators = tuple(_operator(node, graph, layouts) for node in graph.nodes)
    wanted: dict[str, dict[Layout, None]] = {}
    for operator in operators:
        for form in operator.forms:
            touched = zip((*operator.inputs, *operator.outputs), (*form.inputs, *form.outputs), strict=True)
            for edge, layout in touched:
                wanted.setdefault(edge, {})[layout] = None
    reorder = {
        edge: {
            pair: 0.0
            for have in layouts[edge]
            for want in wants
            if have != want
            for pair in ((have, want), (want, have))
        }
        for edge, wants in wanted.items()
        if len(wants) > 1
    }
    return LayoutProblem(operators, {edge: tuple(layouts[edge]) for edge in wanted}, reorder)


def _propagate_layouts(graph: Graph) -> dict[str, list[Layout]]:
    """The candidates: layouts that operators wish for, propagated through operators that keep layouts."""
    found = {x: [identity(len(t.shape))] for x, t in graph.types.items() if x not in graph.constants}
    fixed = {*graph.inputs, *graph.outputs}

    def add(x: str, layout: Layout) -> None:
        known = found.get(x)
        if known is None or x in fixed or len(order(layout)) > _MAX_RANK or len(known) >= _MAX_LAYOUTS:
            return
        if not any(same_bytes(graph.types[x], layout, other) for other in known):
            known.append(layout)

    for node in graph.nodes:
        for x, preferred in FAMILIES[node.op].preferred(node, graph).items() if node.op in FAMILIES else ():
            for layout in preferred:
                add(x, layout)
    for turn in range(_ROUNDS):
        for node in graph.nodes if turn % 2 == 0 else reversed(graph.nodes):
            for layouts in _related_forms(node, graph, found):
                for x, layout in layouts.items():
                    add(x, layout)
    return found


def _related_forms(node: Node, graph: Graph, known: Mapping[str, Sequence[Layout]]) -> Iterator[Layouts]:
    """The forms of an operator whose tensors have related layouts."""
    family = FAMILIES.get(node.op)
    if family is None or family.follow is None:
        return
    for x in (*tensors_in(node, graph), *tensors_out(node)):
        if len(graph.types[x].shape) > _MAX_RANK:
            continue
        for layout in tuple(known[x]):
            if has_gap(layout) and not family.has_gap_forms:
                continue
            layouts = family.follow(node, graph, x, layout)
            if layouts is not None:
                yield layouts


def _operator(node: Node, graph: Graph, known: Mapping[str, Sequence[Layout]]) -> Operator:
    family = FAMILIES.get(node.op)
    forms = {form_of(node, graph, default_layouts(node, graph)): None}
    for layouts in _related_forms(node, graph, known):
        forms[form_of(node, graph, layouts)] = None
    if family is not None and family.propose is not None:
        for layouts, variant in family.propose(node, graph, known):
            forms[form_of(node, graph, layouts, variant)] = None
    return Operator(tensors_out(node)[0], tensors_in(node, graph), tensors_out(node), tuple(forms))


def realise(node: Node, graph: Graph, form: OperatorForm) -> NodeReplacement:
    """The nodes that run `node` in a form; for the default form the node itself."""
    layouts = layouts_of(node, graph, form)
    if not form.variant and layouts == default_layouts(node, graph):
        return NodeReplacement((node,))
    return FAMILIES[node.op].realise(node, graph, layouts, form.variant)


def measurement_keys(graph: Graph, problem: LayoutProblem, *, all_loops: bool = False) -> MeasurementKeys:
    """The measurements for `problem`, which is `build_problem(graph)`; equal operators share keys.

    A cost model excludes plain loops that cannot win, unless `all_loops`.
    """
    forms: dict[tuple[str, int], str] = {}
    reorders: dict[tuple[str, Layout, Layout], str] = {}
    samples: dict[str, Graph] = {}
    seen: dict[tuple[str, tuple[OperatorForm, ...]], dict[int, str]] = {}
    for node, operator in zip(graph.nodes, problem.operators, strict=True):
        like = (_text((node,), graph.types, graph.constants), operator.forms)
        if like not in seen:
            seen[like] = {}
            for i, form in enumerate(operator.forms):
                is_loop = form.variant in windows.LOOPS
                if is_loop and not all_loops and _products(node, graph) > _LOOPED_PRODUCTS:
                    continue
                sample = _sample(node, graph, form)
                key = sha256(_text(sample.nodes, sample.types, sample.constants).encode()).hexdigest()[:24]
                samples.setdefault(key, sample)
                seen[like][i] = key
        forms |= {(operator.name, i): key for i, key in seen[like].items()}
    for edge, pairs in problem.reorder.items():
        for have, want in pairs:
            if same_bytes(graph.types[edge], have, want):
                continue
            sample = _reorder(graph.types[edge], have, want)
            gaps = "".join("+" if has_gap(layout) else "" for layout in (have, want))
            key = f"{sample.types['x']} {''.join(map(str, permutation_between(have, want)))}{gaps}"
            samples.setdefault(key, sample)
            reorders[edge, have, want] = key
    return MeasurementKeys(forms, reorders, samples)


def with_times(problem: LayoutProblem, wanted: MeasurementKeys, table: MeasuredTimes) -> LayoutProblem:
    """`problem` with the times of `table`; a form that is not clearly faster than the default is priced above
    it.

    A form that `table` lacks cannot be chosen, except the default, which then costs nothing.
    """
    operators = []
    for operator in problem.operators:
        asked = [wanted.forms.get((operator.name, i), "") for i in range(len(operator.forms))]
        seconds = [table.get(key) for key in asked]
        default = seconds[0] or 0.0
        forms = [replace(operator.forms[0], seconds=default)]
        for form, s in zip(operator.forms[1:], seconds[1:], strict=True):
            if s is not None:
                s = max(s, default) if s > CLEAR_RATIO * default else s
                forms.append(replace(form, seconds=s + _TIE_S))
        operators.append(replace(operator, forms=_fastest(forms)))
    reorder = {
        edge: {
            (a, b): _TIE_S
            + (table.get(wanted.reorders[edge, a, b], 1.0) if (edge, a, b) in wanted.reorders else 0)
            for a, b in pairs
        }
        for edge, pairs in problem.reorder.items()
    }
    return replace(problem, operators=tuple(operators), reorder=reorder)


def _fastest(forms: Sequence[OperatorForm]) -> tuple[OperatorForm, ...]:
    """The fastest of each group of forms that differ only in their loops (FluidML 3, loop reordering)."""
    best: dict[tuple[tuple[Layout, ...], tuple[Layout, ...]], OperatorForm] = {}
    for form in forms:
        kept = best.get((form.inputs, form.outputs))
        if kept is None or form.seconds < kept.seconds:
            best[form.inputs, form.outputs] = form
    return tuple(best.values())


def _sample(node: Node, graph: Graph, form: OperatorForm) -> Graph:
    """A graph that runs `node` in a form, with its tensors in the layouts of the form."""
    made = realise(node, graph, form)
    names = layouts_of(node, graph, form)
    types = {x: physical_type(graph.types[x], layout) for x, layout in names.items()} | dict(made.types)
    read = {x for part in made.nodes for x in part.inputs if x}
    constants = {x: a for x, a in {**graph.constants, **made.constants}.items() if x in read}
    types |= {x: TensorType(a.dtype.name, a.shape) for x, a in constants.items()}
    inputs = tuple(x for x in tensors_in(node, graph) if x in read)
    return Graph(made.nodes, inputs, tensors_out(node), {**types}, constants)


def _products(node: Node, graph: Graph) -> int:
    """Multiplications of an operator that has loops."""
    y, w = graph.types[node.outputs[0]], graph.types[node.inputs[1]]
    if node.op in ("Conv", "FusedConv"):
        return y.size * prod(w.shape[1:])
    return y.size * products.depth(node, graph)


def _reorder(type_: TensorType, have: Layout, want: Layout) -> Graph:
    made = reorder("x", "y", type_, have, want)
    types = {"x": physical_type(type_, have), "y": physical_type(type_, want), **made.types}
    types |= {x: TensorType(a.dtype.name, a.shape) for x, a in made.constants.items()}
    return Graph(made.nodes, ("x",), ("y",), types, made.constants)


def _text(nodes: Sequence[Node], types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray]) -> str:
    """Nodes as text without names: operators, attributes, types, and the values of small constants."""
    number: dict[str, int] = {}

    def named(x: str) -> str:
        if not x:
            return "-"
        i = number.setdefault(x, len(number))
        array = constants.get(x)
        if array is None:
            return f"{i}:{types[x]}"
        values = array.tolist() if array.size <= _SMALL else ""
        return f"{i}={types[x]}{values}"

    lines = []
    for node in nodes:
        attributes = ",".join(f"{k}={_value(v)}" for k, v in sorted(node.attributes.items()))
        lines.append(
            f"{' '.join(map(named, node.outputs))}={node.op}<{attributes}>{' '.join(map(named, node.inputs))}"
        )
    return "\n".join(lines)


def _value(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]}"
    return repr(value)
