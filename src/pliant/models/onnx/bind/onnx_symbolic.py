"""Find a model's graph with open sizes as symbols, by binding it at a few sizes.

Numbers that differ between the graphs must be polynomials of the sizes that hold for all of them. The current
sizes lie between the others, two of which are neighbours. A size of 0 or 1 broadcasts, so it is never open.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from operator import mul
from typing import Any, final

import numpy as np

from pliant.errors import GraphError, InputError
from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.ir.symbolic import Trace, size_array
from pliant.models.onnx.bind.onnx_blocks import BoundPart, ScopedNode
from pliant.models.onnx.bind.onnx_constants import (
    KnownConstants,
    SymbolicConstant,
    grid,
    grid_corner,
    monomials,
)
from pliant.models.onnx.bind.onnx_shapes import VALUE_INPUTS
from pliant.models.onnx.bind.shape_family import InputShapes, ShapeFamily

_LEAST = 2
_FAR = 3
"""The step, besides 1, by which a size is changed to test whether it may be open."""
_HIGHEST = (1024, 512, 256, 128, 64)
SIZE_LIMITS = ((64, 128), (1024,), (256,))
"""The largest sizes to try, for two open sizes or one: values made of larger ones are not folded."""
PART_SIZE_LIMITS = ((1024, 1024, 1024), (1024, 1024), *SIZE_LIMITS)

_MOST_ELEMENTS = 16
"""The most elements of a constant that is not a grid: each element has its own polynomial."""


@dataclass(frozen=True, slots=True)
class SymbolicGraph:
    """A graph with symbolic numbers in its types and in constants that determine shapes.

    Constants of `made` are inputs of the graph, so that no compiler decision depends on their values.
    `waiting` and `known` are those of the bound part (onnx_blocks.BoundPart): equal for all sizes, except
    values of `known` that depend on sizes.
    """

    graph: Graph
    family: ShapeFamily
    trace: Trace
    made: Mapping[str, SymbolicConstant]
    waiting: tuple[ScopedNode, ...] = ()
    known: KnownConstants = field(default_factory=dict)

    def at(self, sizes: Sequence[int]) -> "SymbolicGraph":
        """The same graph with these current sizes and no recorded conditions."""
        trace = Trace()
        symbols = [trace.symbol(name, n) for name, n in zip(self.family.names, sizes, strict=True)]

        def moved(number: Any) -> Any:
            return self.trace.replace_symbols(number, symbols)

        graph = replace(
            self.graph,
            types={x: TensorType(t.dtype, tuple(map(moved, t.shape))) for x, t in self.graph.types.items()},
            constants={
                x: a if a.dtype != object else size_array(list(map(moved, a.ravel()))).reshape(a.shape)
                for x, a in self.graph.constants.items()
            },
            nodes=tuple(
                replace(
                    node,
                    attributes={
                        k: tuple(map(moved, v)) if isinstance(v, tuple) else moved(v)
                        for k, v in node.attributes.items()
                    },
                )
                for node in self.graph.nodes
            ),
        )
        return replace(self, graph=graph, trace=trace)


def symbolic_graph(
    shapes: InputShapes,
    open_dims: Mapping[str, Sequence[str | None]],
    bind: Callable[[InputShapes], BoundPart],
    ways: Sequence[Sequence[int]] = SIZE_LIMITS,
) -> SymbolicGraph | None:
    """The graph of the family of `shapes`; None if no family is found.

    `open_dims` names the open dimensions of each input. `bind` returns the part for given shapes, and raises
    GraphError or InputError for incompatible ones; these errors are passed on for `shapes`. `ways` are tried
    in turn: the largest sizes for dimensions that are open together.
    """
    sizes = open_sizes(shapes, open_dims)
    here = bind(shapes)
    binds = _BindCache(bind, {tuple(shapes.items()): here})

    def moves(names: Sequence[str]) -> bool | None:
        """Whether these sizes may change together; None if the model does not bind to other sizes."""
        near, far = (binds(_grow(shapes, open_dims, names, by)) for by in (1, _FAR))
        return None if near is None or far is None else _are_on_a_line(here.graph, near.graph, far.graph)

    alone = {name: moves([name]) for name in sizes}
    if False in alone.values():
        return None
    names = [[name] for name, is_open in alone.items() if is_open]
    joint = [name for name in alone if [name] not in names]
    if joint and moves(joint):
        names.append(joint)
    for most in ways:
        if len(most) <= len(names):
            try:
                return _SymbolicFit(*_bound_family(shapes, open_dims, names[-len(most) :], most, binds)).graph
            except _FormMismatchError:
                pass
    return None


class _FormMismatchError(Exception):
    """Graphs of different sizes are not instances of one symbolic graph."""


@final
class _BindCache:
    """Parts by shapes, None for incompatible shapes."""

    def __init__(
        self, bind: Callable[[InputShapes], BoundPart], known: dict[object, BoundPart | None]
    ) -> None:
        self._bind, self._known = bind, known

    def __call__(self, shapes: InputShapes) -> BoundPart | None:
        key = tuple(shapes.items())
        if key not in self._known:
            try:
                self._known[key] = self._bind(shapes)
            except (GraphError, InputError):
                self._known[key] = None
        return self._known[key]


def open_sizes(shapes: InputShapes, open_dims: Mapping[str, Sequence[str | None]]) -> dict[str, int]:
    """The open dimensions whose sizes may change, with the least size of each name; none that broadcasts."""
    found: dict[str, int] = {}
    for x, names in open_dims.items():
        for name, n in zip(names, shapes[x], strict=True):
            if name is not None and n >= _LEAST:
                found[name] = min(n, found.get(name, n))
    return found


def _bound_family(
    shapes: InputShapes,
    open_dims: Mapping[str, Sequence[str | None]],
    groups: Sequence[Sequence[str]],
    most: Sequence[int],
    bind: _BindCache,
) -> tuple[ShapeFamily, dict[tuple[int, ...], BoundPart]]:
    """The family where the sizes of each group are open together, with parts, the current one first."""
    sizes = open_sizes(shapes, open_dims)
    base = tuple(min(sizes[name] for name in group) for group in groups)
    place = {name: i for i, group in enumerate(groups) for name in group}
    dims = {
        x: tuple(
            (place[name], n - base[place[name]]) if name in place and n >= _LEAST else (None, n)
            for name, n in zip(names, shapes[x], strict=True)
        )
        for x, names in open_dims.items()
    }
    form = ShapeFamily(dims, (), ())
    parts: dict[tuple[int, ...], BoundPart] = {}

    def is_bound(at: tuple[int, ...]) -> bool:
        part = bind(form.shapes(at))
        if part is not None:
            parts[at] = part
        return part is not None

    _require(is_bound(base))
    low, high = list(base), list(base)
    for i, n in enumerate(base):
        ways = [(*base[:i], other, *base[i + 1 :]) for other in (_LEAST, *_HIGHEST)]
        low[i] = next((at[i] for at in ways if at[i] < n and is_bound(at)), n)
        high[i] = next((at[i] for at in ways if n < at[i] <= most[i] and is_bound(at)), n)
        if n in (low[i], high[i]):
            between = (low[i] + high[i]) // 2
            _require(low[i] < between < high[i] and is_bound((*base[:i], between, *base[i + 1 :])))
        # Two neighbours: no polynomial fits both if a number is rounded to a multiple or is a remainder.
        _require(is_bound((*base[:i], high[i] - 1, *base[i + 1 :])))
    for i, j in combinations(range(len(base)), 2):
        _require(is_bound(tuple(high[k] if k in (i, j) else n for k, n in enumerate(base))))
    return ShapeFamily(dims, tuple(low), tuple(high)), parts


def _grow(
    shapes: InputShapes, open_dims: Mapping[str, Sequence[str | None]], moved: Collection[str], by: int
) -> dict[str, tuple[int, ...]]:
    """The shapes with some sizes larger."""
    return {
        x: tuple(
            n + by if name in moved and n >= _LEAST else n for name, n in zip(own, shapes[x], strict=True)
        )
        for x, own in open_dims.items()
    }


@final
class _SymbolicFit:
    """One symbolic graph, fitted to several graphs of equal form."""

    def __init__(self, family: ShapeFamily, parts: Mapping[tuple[int, ...], BoundPart]) -> None:
        self._all, self._parts = list(parts), list(parts.values())
        self._graphs = [part.graph for part in self._parts]
        self._family, self._trace = family, Trace()
        at = zip(family.names, self._all[0], strict=True)
        self._symbols = [self._trace.symbol(name, n) for name, n in at]
        self._matrix = np.array([monomials(sizes) for sizes in self._all], np.float64)
        self._numbers: dict[tuple[int, ...], int] = {}

    @property
    def graph(self) -> SymbolicGraph:
        first, *others = self._graphs
        for other in others:
            _check_alike(first, other)
        for part in self._parts[1:]:
            _check_waiting(self._parts[0], part)
        types = {x: self._type([g.types[x] for g in self._graphs]) for x in first.types}
        shaping = {
            node.inputs[i]
            for node in first.nodes
            for i in VALUE_INPUTS.get(node.op, ())
            if i < len(node.inputs) and node.inputs[i]
        }
        computing = {
            x
            for node in first.nodes
            for i, x in enumerate(node.inputs)
            if i not in VALUE_INPUTS.get(node.op, ())
        } | set(first.outputs)
        constants: dict[str, np.ndarray] = {}
        made: dict[str, SymbolicConstant] = {}
        for x in first.constants:
            arrays = [g.constants[x] for g in self._graphs]
            if _are_equal(arrays):
                constants[x] = arrays[0]
            elif x in computing:
                _require(x not in shaping)
                made[x] = self._made(arrays)
            else:
                constants[x] = self._shaping(arrays)
        graph = replace(
            first,
            inputs=(*first.inputs, *made),
            types=types,
            constants=constants,
            nodes=tuple(self._node(nodes) for nodes in zip(*(g.nodes for g in self._graphs), strict=True)),
        )
        known = {x: self._known([part.known[x] for part in self._parts]) for x in self._parts[0].known}
        return SymbolicGraph(graph, self._family, self._trace, made, self._parts[0].waiting, known)

    def _number(self, values: tuple[int, ...]) -> int:
        """The polynomial that has these values at the sizes bound."""
        if len(set(values)) == 1:
            return values[0]
        _require(all(type(value) is int for value in values))
        if values not in self._numbers:
            self._numbers[values] = sum(map(mul, self._factors(values), monomials(self._symbols)))
        return self._numbers[values]

    def _factors(self, values: Sequence[int]) -> tuple[int, ...]:
        """The coefficients of the polynomial that has these values at the sizes bound."""
        factors = tuple(round(f) for f in np.linalg.lstsq(self._matrix, np.array(values, np.float64))[0])
        found = [sum(map(mul, factors, monomials(sizes))) for sizes in self._all]
        _require(found == list(values))
        return factors

    def _type(self, types: Sequence[TensorType]) -> TensorType:
        first = types[0]
        _require(all(t.dtype == first.dtype and len(t.shape) == len(first.shape) for t in types))
        return TensorType(first.dtype, tuple(map(self._number, zip(*(t.shape for t in types), strict=True))))

    def _node(self, nodes: Sequence[Node]) -> Node:
        attributes = {
            key: self._attribute([node.attributes[key] for node in nodes]) for key in nodes[0].attributes
        }
        is_same = all(value is nodes[0].attributes[key] for key, value in attributes.items())
        return nodes[0] if is_same else replace(nodes[0], attributes=attributes)

    def _attribute(self, values: Sequence[Any]) -> Attribute:
        first: Attribute = values[0]
        if isinstance(first, np.ndarray):
            _require(_are_equal(values))
            return first
        if all(value == first for value in values):
            return first
        if isinstance(first, tuple):
            _require(all(len(value) == len(first) for value in values))
            return tuple(map(self._number, zip(*values, strict=True)))
        return self._number(tuple(values))

    def _shaping(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """A constant that determines shapes, as symbolic numbers."""
        first = arrays[0]
        _require(first.dtype.kind in "iu" and all(a.shape == first.shape for a in arrays))
        values = zip(*(a.ravel().tolist() for a in arrays), strict=True)
        return size_array(list(map(self._number, values))).reshape(first.shape)

    def _known(self, arrays: Sequence[np.ndarray]) -> np.ndarray | SymbolicConstant:
        return arrays[0] if _are_equal(arrays) else self._made(arrays)

    def _made(self, arrays: Sequence[np.ndarray]) -> SymbolicConstant:
        largest = max(arrays, key=lambda a: a.size)
        _require(all(a.ndim == largest.ndim and a.dtype == largest.dtype for a in arrays))
        dims = tuple(map(self._factors, zip(*(a.shape for a in arrays), strict=True)))
        if largest.shape == tuple(map(max, zip(*(a.shape for a in arrays), strict=True))) and all(
            a.tobytes() == largest[tuple(map(slice, a.shape))].tobytes() for a in arrays
        ):
            return SymbolicConstant(largest.dtype, dims, largest)
        _require(largest.dtype.kind in "iu" and all(a.size for a in arrays))
        if largest.size <= _MOST_ELEMENTS and all(a.shape == largest.shape for a in arrays):
            values = zip(*(a.ravel().tolist() for a in arrays), strict=True)
            return SymbolicConstant(largest.dtype, dims, elements=tuple(map(self._factors, values)))
        corners = [grid_corner(a) for a in arrays]
        _require(
            all(np.array_equal(a, grid(c[0], c[1:], a.shape)) for a, c in zip(arrays, corners, strict=True))
        )
        return SymbolicConstant(
            largest.dtype, dims, grid=tuple(map(self._factors, zip(*corners, strict=True)))
        )


def _are_on_a_line(here: Graph, near: Graph, far: Graph) -> bool:
    """Whether all dimensions are linear in the size; rounded or divided ones are not."""
    return here.types.keys() == near.types.keys() == far.types.keys() and all(
        len(t.shape) == len(near.types[x].shape) == len(far.types[x].shape)
        and all(
            (b - a) * _FAR == c - a
            for a, b, c in zip(t.shape, near.types[x].shape, far.types[x].shape, strict=True)
        )
        for x, t in here.types.items()
    )


def _check_alike(a: Graph, b: Graph) -> None:
    _require(a.inputs == b.inputs and a.outputs == b.outputs and len(a.nodes) == len(b.nodes))
    _require(set(a.types) == set(b.types) and set(a.constants) == set(b.constants))
    for one, other in zip(a.nodes, b.nodes, strict=True):
        _require(one.op == other.op and one.inputs == other.inputs and one.outputs == other.outputs)
        _require(set(one.attributes) == set(other.attributes))


def _check_waiting(a: BoundPart, b: BoundPart) -> None:
    """Require that the same nodes wait, for tensors that are known under the same names."""
    _require(len(a.waiting) == len(b.waiting) and a.known.keys() == b.known.keys())
    for one, other in zip(a.waiting, b.waiting, strict=True):
        _require(one.host == other.host and (one.node is other.node or one.node == other.node))


def _are_equal(arrays: Sequence[np.ndarray]) -> bool:
    first = arrays[0]
    return all(
        a is first or (a.dtype == first.dtype and a.shape == first.shape and a.tobytes() == first.tobytes())
        for a in arrays
    )


def _require(holds: bool) -> None:
    if not holds:
        raise _FormMismatchError
