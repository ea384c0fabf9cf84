"""An ONNX model with every dimension a number, as an ir graph. Knows which operators have kernels, no kernel.

One walk over the nodes does it all: each node's types are inferred at its own opset, what is known is
folded (so computations on shapes vanish), operators without a kernel are replaced by the function ONNX
gives for them, and what is left is said in the newest opset's words.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, final

import numpy as np
from onnx import helper

from pliant.errors import GraphError, InputError, ValueNeeded
from pliant.ir.graph import Graph, Node, TensorType
from pliant.models.onnx_adapt import BROADCASTING_OPSET, SAME_BEFORE_7, adapt
from pliant.models.onnx_file import OnnxModel, Port
from pliant.models.onnx_fold import fold, may_fold
from pliant.models.onnx_nodes import (
    attribute,
    check_axes,
    check_types,
    function_of,
    infer,
    operator_key,
    renamed,
    schema_of,
)
from pliant.models.onnx_shapes import VALUE_INPUTS, known_shape
from pliant.models.onnx_tensor import ELEMENT_TYPES, array_of

MAX_NODES = 200_000
"""Functions that call functions can grow without bound."""
MAX_DEPTH = 64
MAX_TENSOR_BYTES = 1 << 40
MAX_VALUE_ELEMENTS = 4096
"""Longer inputs are never bound by value: each new value is another compilation."""

FOLDED = frozenset(("Constant", "Shape", "Size", "Dropout", "CastLike"))
"""Operators that are gone once a model is bound."""

_CONTROL_FLOW = frozenset(("If", "Loop", "Scan", "SequenceMap"))
_NON_TENSOR = ("sequence", "optional", "string", "splittosequence", "concatfromsequence")


def bind(
    model: OnnxModel,
    dims: Mapping[str, int],
    values: Mapping[str, np.ndarray] | None = None,
    *,
    supported: Collection[str],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    max_bytes: int = MAX_TENSOR_BYTES,
) -> Graph:
    """The graph of `model` with symbolic dimensions `dims` and inputs' `values` known.

    A dimension without a name is called `input.axis` ("x.0"). `shapes` gives inputs' whole shapes instead.
    `supported` names the operators that have kernels, others' functions are expanded. Inputs given by
    value are no inputs of the graph. A tensor of more than `max_bytes` is refused.

    Raises InputError for dimensions that are missing, unknown or negative; ValueNeeded when a shape
    follows from the value of inputs; GraphError naming node and tensor when something does not fit, and
    naming all operators that cannot be compiled at once.
    """
    types = {port.name: _bound(port, dims, shapes or {}) for port in model.inputs}
    _no_unknown(model, dims)
    walk = _Walk(model, supported, max_bytes)
    given = values or {}
    for name, type_ in types.items():
        walk.add_input(name, type_, given.get(name))
    try:
        walk.run()
    except UnicodeError as error:
        raise GraphError(f"{model.source} holds names that are no text: {error}.") from error
    return walk.graph([name for name in types if name not in given])


def _bound(port: Port, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> TensorType:
    if port.name in shapes:
        return TensorType(port.dtype, shapes[port.name])
    if port.dims is None:
        raise InputError(f"input {port.name!r} may have any rank; give its whole shape.")
    shape = []
    for axis, dim in enumerate(port.dims):
        key = dim if isinstance(dim, str) else f"{port.name}.{axis}"
        size = dim if isinstance(dim, int) else dims.get(key)
        if size is None:
            raise InputError(f"dimension {key!r} of input {port.name!r} ({port}) is not bound.")
        if size < 0:
            raise InputError(f"dimension {key!r} is {size}; it must be 0 or more.")
        shape.append(int(size))
    return TensorType(port.dtype, tuple(shape))


def _no_unknown(model: OnnxModel, dims: Mapping[str, int]) -> None:
    known = set(model.symbols)
    known |= {f"{p.name}.{i}" for p in model.inputs for i, d in enumerate(p.dims or ()) if d is None}
    unknown = sorted(set(dims) - known)
    if unknown:
        raise InputError(f"the model has no dimensions {unknown}; it has {sorted(known)}.")


@dataclass(frozen=True)
class _Scope:
    """Where a node stands: what its names mean, the opsets in force, attributes of the function around it."""

    opsets: Mapping[str, int]
    names: dict[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    depth: int = 0

    def name(self, formal: str) -> str:
        if not self.depth:
            return formal
        if formal not in self.names:
            raise GraphError(f"{self.prefix!r} reads {formal!r}, which nothing before it makes.")
        return self.names[formal]


@final
class _Walk:
    """The state of one walk: tensors known so far, by value or by type, and the nodes kept."""

    def __init__(self, model: OnnxModel, supported: Collection[str], max_bytes: int) -> None:
        self._model = model
        self._max_bytes = max_bytes
        self._supported = supported
        self._types: dict[str, TensorType] = {}
        self._values: dict[str, np.ndarray] = {}
        self._nodes: list[Node] = []
        self._makers: dict[str, Node] = {}
        self._lost: set[str] = set()
        self._problems: dict[str, list[str]] = {}
        self._count = count()
        self._visited = 0
        self._functions = {(f.domain, f.name, f.overload): f for f in model.proto.functions}
        _check_size(model.proto, self._functions, model.source)
        for name, array in model.constants.items():
            self._know(name, array)

    def add_input(self, name: str, type_: TensorType, value: np.ndarray | None) -> None:
        self._fits(name, type_)
        self._types[name] = type_
        if value is not None:
            self._values[name] = value

    def run(self) -> None:
        graph = self._model.proto.graph
        needed = _needed(graph)
        self._walk((n for i, n in enumerate(graph.node) if i in needed), _Scope(self._model.opsets))
        if self._problems:
            named = "; ".join(f"{op} (at {_some(at)})" for op, at in sorted(self._problems.items()))
            raise GraphError(f"{self._model.source} holds operators that cannot be compiled: {named}.")

    def graph(self, inputs: list[str]) -> Graph:
        outputs = tuple(v.name for v in self._model.proto.graph.output)
        made = {y for node in self._nodes for y in node.outputs}
        read = {x for node in self._nodes for x in node.inputs} | set(outputs)
        constants = {x: a for x, a in self._values.items() if x in read and x not in made and x not in inputs}
        kept = made | set(constants) | set(inputs)
        return Graph(
            nodes=tuple(self._nodes),
            inputs=tuple(inputs),
            outputs=outputs,
            types={x: t for x, t in self._types.items() if x in kept},
            constants=constants,
            name=self._model.proto.graph.name or "graph",
        )

    # What adapters may see and add (onnx_adapt.Around).

    def type(self, tensor: str) -> TensorType:
        return self._types[tensor]

    def value(self, tensor: str) -> np.ndarray | None:
        return self._values.get(tensor)

    def constant(self, near: str, value: np.ndarray) -> str:
        name = self._fresh(near)
        self._know(name, np.asarray(value))
        return name

    def tensor(self, near: str, type_: TensorType) -> str:
        name = self._fresh(near)
        self._types[name] = type_
        return name

    # The walk.

    def _walk(self, nodes: Iterable[Any], scope: _Scope) -> None:
        for node in nodes:
            self._visited += 1
            if self._visited > MAX_NODES:
                raise GraphError(f"{self._model.source} expands to more than {MAX_NODES} nodes.")
            self._visit(node, scope)

    def _visit(self, formal: Any, scope: _Scope) -> None:
        outputs = [self._output(y, scope) for y in formal.output]
        node = renamed(formal, scope.name, outputs, scope.attributes)
        for inner, outer in zip(formal.output, outputs, strict=True):
            if scope.depth and inner:
                scope.names[inner] = outer
        key = operator_key(node.domain, node.op_type)
        where = f"node {scope.prefix + (node.name or node.output[0])!r} ({key})"
        if any(x in self._lost for x in node.input):
            self._lose(node, key, where, is_cause=self._is_unknown(node, key, scope))
            return
        missing = [x for x in node.input if x and x not in self._types]
        if missing:
            raise GraphError(f"{where} reads {missing}, which nothing before it makes.")
        if key == "CastLike":
            node, key = self._as_cast(node), "Cast"
        local = self._functions.get((node.domain, node.op_type, node.overload))
        if local is not None:
            self._expand(local, node, scope, where)
        elif not self._known_without_running(node, key, scope):
            self._operator(node, key, scope, where)

    def _output(self, formal: str, scope: _Scope) -> str:
        if not scope.depth or not formal:
            return str(formal)
        return self._fresh(f"{scope.prefix}{formal}")

    def _known_without_running(self, node: Any, key: str, scope: _Scope) -> bool:
        """Constants, shapes, and branches whose condition is known."""
        if key == "Constant":
            self._know(node.output[0], self._constant(node))
            return True
        if key in ("Shape", "Size"):
            attributes = {a.name: a.i for a in node.attribute}
            shape = self._types[node.input[0]].shape
            size = np.int64(self._types[node.input[0]].size)
            part = shape[slice(attributes.get("start", 0), attributes.get("end"))]
            self._know(node.output[0], np.array(part, np.int64) if key == "Shape" else np.asarray(size))
            return True
        if key == "If" and node.input[0] in self._values:
            self._branch(node, bool(np.all(self._values[node.input[0]])), scope)
            return True
        if key == "Dropout" and self._drops_nothing(node):
            self._rename(node.input[0], node.output[0])
            if len(node.output) > 1 and node.output[1]:
                self._know(node.output[1], np.ones(self._types[node.input[0]].shape, np.bool_))
            return True
        return False

    def _constant(self, node: Any) -> np.ndarray:
        if len(node.attribute) != 1 or node.attribute[0].name == "sparse_value":
            raise GraphError(f"the Constant {node.output[0]!r} has no dense value.")
        value = attribute(node.attribute[0], self._model.external)
        if isinstance(value, np.ndarray):
            return value
        exact = np.array(value)
        if exact.dtype.kind not in "if":
            raise GraphError(f"the Constant {node.output[0]!r} is text, which is not supported.")
        return exact.astype(np.float32 if exact.dtype.kind == "f" else np.int64)

    def _as_cast(self, node: Any) -> Any:
        """Of the second input, only the type counts, which is known."""
        attributes = {a.name: a.i for a in node.attribute}
        to = ELEMENT_TYPES[self._types[node.input[1]].dtype]
        return helper.make_node("Cast", node.input[:1], node.output, node.name, to=to, **attributes)

    def _drops_nothing(self, node: Any) -> bool:
        """Whether a Dropout is one at inference, or drops with probability 0."""
        ratio, training = (*node.input[1:], "", "")[:2]
        known = self._values.get(training)
        if not training or (known is not None and not known.any()):
            return True
        return ratio in self._values and not self._values[ratio].any()

    def _operator(self, node: Any, key: str, scope: _Scope, where: str) -> None:
        version = scope.opsets.get("" if node.domain == "ai.onnx" else node.domain)
        schema = None if version is None else schema_of(node.domain, node.op_type, version)
        if schema is None or key in _CONTROL_FLOW or not _means_the_same(schema, node, scope.opsets):
            self._lose(node, key, where, is_cause=True)
            return
        check_types(schema, node, self._types, where)
        check_axes(node, self._types, where)
        self._all_known(node, key, where)
        known = known_shape(node, self._types, self._values)
        types: dict[str, TensorType | None] = (
            {node.output[0]: known}
            if known
            else infer(schema, node, self._types, self._values, scope.opsets, where)
        )
        for y, type_ in types.items():
            if type_ is not None:
                self._fits(y, type_)
        if all(x in self._values for x in node.input if x) and self._fold(node, key, scope, types):
            return
        if not self._keep(node, key, schema, types):
            function = function_of(schema, node, self._types)
            if function is None:
                self._lose(node, key, where, is_cause=True)
            else:
                self._expand(function, node, scope, where)

    def _keep(self, node: Any, key: str, schema: Any, types: Mapping[str, TensorType | None]) -> bool:
        """Add the node as it is said in the newest opset; False where there is no word or kernel."""
        attributes = {a.name: attribute(a, self._model.external) for a in node.attribute}
        kept = Node(key, tuple(node.input), tuple(node.output), attributes, node.name or node.output[0])
        adapted = adapt(kept, schema.since_version, self)
        if adapted is None or any(n.op not in self._supported for n in adapted):
            return False
        unknown = [y for y, t in types.items() if t is None]
        if unknown:
            raise GraphError(
                f"node {node.name or node.output[0]!r} ({key}) makes {unknown}, whose shape depends on "
                "data: a static program cannot hold it."
            )
        self._types |= {y: t for y, t in types.items() if t is not None}
        for n in adapted:
            self._nodes.append(n)
            self._makers |= {y: n for y in n.outputs if y}
        return True

    def _fold(self, node: Any, key: str, scope: _Scope, types: Mapping[str, TensorType | None]) -> bool:
        taken = sum(self._values[x].nbytes for x in node.input if x)
        made = sum(t.n_bytes for t in types.values() if t is not None)
        if not may_fold(key, taken, made, key in self._supported):
            return False
        found = fold(node, self._values, scope.opsets, types)
        for y, value in (found or {}).items():
            self._know(y, value)
        return found is not None

    def _expand(self, function: Any, node: Any, scope: _Scope, where: str) -> None:
        """Walk a function's body in the node's place."""
        if scope.depth >= MAX_DEPTH:
            raise GraphError(f"{where}: functions call each other more than {MAX_DEPTH} deep.")
        attributes = {a.name: a for a in function.attribute_proto} | {a.name: a for a in node.attribute}
        opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in function.opset_import}
        inside = _Scope(
            {**scope.opsets, **opsets},
            dict.fromkeys(function.input, "") | dict(zip(function.input, node.input, strict=False)),
            self._defaults(node, scope) | attributes,
            f"{scope.prefix}{node.name or node.op_type}/",
            scope.depth + 1,
        )
        self._walk(function.node, inside)
        for formal, y in zip(function.output, node.output, strict=False):
            if y:
                self._rename(inside.name(formal), y)

    def _defaults(self, node: Any, scope: _Scope) -> dict[str, Any]:
        version = scope.opsets.get("" if node.domain == "ai.onnx" else node.domain)
        schema = None if version is None else schema_of(node.domain, node.op_type, version)
        declared = {} if schema is None else schema.attributes
        return {name: a.default_value for name, a in declared.items() if a.default_value.type}

    def _branch(self, node: Any, taken: bool, scope: _Scope) -> None:
        wanted = "then_branch" if taken else "else_branch"
        body = next(a.g for a in node.attribute if a.name == wanted)
        if scope.depth >= MAX_DEPTH:
            raise GraphError(f"branches are nested more than {MAX_DEPTH} deep.")
        outer = scope.names if scope.depth else _Outer()
        names = _Inherited(outer)
        prefix = f"{scope.prefix}{node.name or node.op_type}/"
        inside = _Scope(scope.opsets, names, scope.attributes, prefix, scope.depth + 1)
        for tensor in body.initializer:
            names[tensor.name] = self._fresh(prefix + tensor.name)
            self._know(names[tensor.name], array_of(tensor, self._model.external))
        self._walk(body.node, inside)
        for formal, y in zip(body.output, node.output, strict=False):
            if y:
                self._rename(inside.name(formal.name), y)

    def _rename(self, inner: str, outer: str) -> None:
        """Give a function's result the name its caller uses."""
        if inner in self._lost:
            self._lost.add(outer)
        elif inner in self._values:
            self._know(outer, self._values[inner])
        else:
            self._types[outer] = self._types[inner]
            self._nodes.append(Node("Identity", (inner,), (outer,), {}, outer))
            self._makers[outer] = self._nodes[-1]

    # What is known, and what cannot be.

    def _know(self, name: str, value: np.ndarray) -> None:
        self._values[name] = value
        self._types[name] = TensorType(str(value.dtype), value.shape)

    def _fresh(self, near: str) -> str:
        taken = self._types
        return next(name for i in self._count if (name := f"{near}#{i}") not in taken)

    def _fits(self, name: str, type_: TensorType) -> None:
        if type_.n_bytes > self._max_bytes:
            raise GraphError(f"tensor {name!r} would be {type_}: {type_.n_bytes} bytes.")

    def _all_known(self, node: Any, key: str, where: str) -> None:
        """Raises ValueNeeded naming the inputs that a shape follows from."""
        wanted = VALUE_INPUTS.get(key, ())
        unknown = [x for i, x in enumerate(node.input) if i in wanted and x and x not in self._values]
        if not unknown:
            return
        sources = self._sources(unknown)
        long = [x for x in sources if self._types[x].size > MAX_VALUE_ELEMENTS]
        if long:
            raise GraphError(
                f"{where}: the shape of its output follows from the values of {sorted(long)}, which are "
                f"too many (over {MAX_VALUE_ELEMENTS}) to compile for each."
            )
        raise ValueNeeded(
            f"{where} can be compiled only once the value of {unknown} is known, which follows from the "
            f"inputs {sorted(sources)}.",
            frozenset(sources),
        )

    def _sources(self, tensors: list[str]) -> set[str]:
        """The model's inputs that tensors are computed from."""
        found, queue, seen = set(), list(tensors), set()
        while queue:
            x = queue.pop()
            if not x or x in seen or x in self._values:
                continue
            seen.add(x)
            if x in self._makers:
                queue += self._makers[x].inputs
            else:
                found.add(x)
        return found

    def _is_unknown(self, node: Any, key: str, scope: _Scope) -> bool:
        """Whether an operator, whose inputs cannot be computed, could not be compiled itself."""
        if key in self._supported or key in ("Constant", "Shape", "Size"):
            return False
        if (node.domain, node.op_type, node.overload) in self._functions:
            return False
        version = scope.opsets.get("" if node.domain == "ai.onnx" else node.domain)
        schema = None if version is None else schema_of(node.domain, node.op_type, version)
        return schema is None or not (schema.has_function or schema.has_context_dependent_function)

    def _lose(self, node: Any, key: str, where: str, *, is_cause: bool) -> None:
        self._lost |= {y for y in node.output if y}
        if is_cause:
            what = f"{key} [control flow]" if key in _CONTROL_FLOW else key
            what = f"{key} [not a tensor]" if key.lower().startswith(_NON_TENSOR) else what
            self._problems.setdefault(what, []).append(where.split("'")[1] if "'" in where else where)


class _Outer(dict[str, str]):
    """Names of the whole model mean themselves."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return name


class _Inherited(dict[str, str]):
    """Names of a branch, and around it those of where it stands."""

    def __init__(self, outer: Mapping[str, str]) -> None:
        super().__init__()
        self._outer = outer

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._outer

    def __missing__(self, name: str) -> str:
        return self._outer[name]


def _check_size(proto: Any, functions: Mapping[tuple[str, str, str], Any], source: str) -> None:
    """Raises GraphError where functions call themselves, or each other too often or too deep."""
    sizes: dict[tuple[str, str, str], int] = {}

    def size(nodes: Iterable[Any], depth: int) -> int:
        if depth > MAX_DEPTH:
            raise GraphError(f"the functions of {source} call each other more than {MAX_DEPTH} deep.")
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            if key in functions and key not in sizes:
                sizes[key] = size(functions[key].node, depth + 1)
            total += sizes.get(key, 1)
        return total

    if size(proto.graph.node, 0) > MAX_NODES:
        raise GraphError(f"{source} expands to more than {MAX_NODES} nodes.")


def _means_the_same(schema: Any, node: Any, opsets: Mapping[str, int]) -> bool:
    """Whether an operator of a very old opset is still the one that is translated."""
    if node.domain not in ("", "ai.onnx") or opsets.get("", BROADCASTING_OPSET) >= BROADCASTING_OPSET:
        return True
    later = schema_of(node.domain, node.op_type, BROADCASTING_OPSET)
    return node.op_type in SAME_BEFORE_7 or (
        later is not None and later.since_version == schema.since_version
    )


def _needed(graph: Any) -> set[int]:
    """Indices of the nodes that outputs depend on; others never run."""
    wanted = {v.name for v in graph.output}
    needed = set()
    for i in range(len(graph.node) - 1, -1, -1):
        node = graph.node[i]
        if wanted.intersection(node.output):
            needed.add(i)
            wanted.update(_read(node))
    return needed


def _read(node: Any) -> set[str]:
    """Names a node reads, those of its subgraphs' nodes included."""
    names = set(node.input)
    for a in node.attribute:
        for body in (a.g, *a.graphs):
            names.update(x for inner in body.node for x in _read(inner))
            names.update(v.name for v in body.output)
    return names


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(n) for n in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
