"""An ONNX model with every dimension a number, as an ir graph.

One walk over the nodes does it all: each node's types are inferred at its own opset, what is known is
folded (so computations on shapes vanish), operators without a kernel are replaced by the function ONNX
gives for them, and what is left is said in the newest opset's words.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, final

import numpy as np

from pliant.errors import GraphError, InputError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.ir.port import Port
from pliant.models.onnx.onnx_adapt import BROADCASTING_OPSET, SAME_BEFORE_7, adapt
from pliant.models.onnx.onnx_contrib import CONTRIB, contrib_function
from pliant.models.onnx.onnx_file import OnnxModel
from pliant.models.onnx.onnx_fit import check_fit, check_indices, check_reshape
from pliant.models.onnx.onnx_fold import fold, may_fold
from pliant.models.onnx.onnx_nodes import (
    attribute,
    check_attributes,
    check_axes,
    check_types,
    function_of,
    infer,
    operator_key,
    renamed,
    schema_of,
)
from pliant.models.onnx.onnx_reach import MAX_NODES, check_size, reached
from pliant.models.onnx.onnx_scope import MAX_DEPTH, Scope
from pliant.models.onnx.onnx_shapes import VALUE_INPUTS, known_shape
from pliant.models.onnx.onnx_tensor import array_of
from pliant.models.onnx.onnx_unsupported import Refused, is_refused
from pliant.models.onnx.onnx_values import KnownValues
from pliant.models.onnx.onnx_vanish import cast_of, constant, drops_nothing, size_of

MAX_TENSOR_BYTES = 1 << 40
_LOOKUPS = ("Gather", "Slice")


def bind(
    model: OnnxModel,
    dims: Mapping[str, int],
    values: Mapping[str, np.ndarray] | None = None,
    *,
    supported: Collection[str],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    max_bytes: int = MAX_TENSOR_BYTES,
    keeps_lookups: bool = False,
) -> Graph:
    """The graph of `model` with symbolic dimensions `dims` and inputs' `values` known.

    A dimension without a name is called `input.axis` ("x.0"). `shapes` gives inputs' whole shapes instead.
    `supported` names the operators that have kernels, others' functions are expanded. Inputs given by
    value are no inputs of the graph. A tensor of more than `max_bytes` is refused. With `keeps_lookups` what
    is looked up in float32 constants stays a node, so that other sizes look up elsewhere.

    Raises InputError for dimensions that are missing, unknown or negative; ValueNeeded when a shape
    follows from the value of inputs; ShapeError naming node and tensor when shapes do not fit each other;
    GraphError when something else does not, and naming all operators that cannot be compiled at once.
    """
    types = {port.name: _bound(port, dims, shapes or {}) for port in model.inputs}
    _no_unknown(model, dims)
    walk = _Walk(model, supported, max_bytes, keeps_lookups)
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


@final
class _Walk:
    """One walk: what is known so far, and what had to be refused."""

    def __init__(
        self, model: OnnxModel, supported: Collection[str], max_bytes: int, keeps_lookups: bool
    ) -> None:
        self._keeps_lookups = keeps_lookups
        self._model = model
        self._supported = supported
        self._known = KnownValues(max_bytes)
        self._refused = Refused()
        self._visited = 0
        self._functions = {(f.domain, f.name, f.overload): f for f in model.proto.functions}
        check_size(model.proto, self._functions, model.source)
        for name, array in model.constants.items():
            self._known.know(name, array)

    def add_input(self, name: str, type_: TensorType, value: np.ndarray | None) -> None:
        self._known.check_fits(name, type_)
        self._known.types[name] = type_
        if value is not None:
            self._known.values[name] = value

    def run(self) -> None:
        self._walk(reached(self._model.proto.graph), Scope(self._model.opsets))
        self._refused.check_none(self._model.source)

    def graph(self, inputs: list[str]) -> Graph:
        proto = self._model.proto.graph
        return self._known.graph(proto.name or "graph", inputs, [v.name for v in proto.output])

    def _walk(self, nodes: Iterable[Any], scope: Scope) -> None:
        for node in nodes:
            self._visited += 1
            if self._visited > MAX_NODES:
                raise GraphError(f"{self._model.source} expands to more than {MAX_NODES} nodes.")
            self._visit(node, scope)

    def _visit(self, formal: Any, scope: Scope) -> None:
        outputs = [self._output(y, scope) for y in formal.output]
        node = renamed(formal, scope.name, outputs, scope.attributes)
        for inner, outer in zip(formal.output, outputs, strict=True):
            if scope.depth and inner:
                scope.names[inner] = outer
        key = operator_key(node.domain, node.op_type)
        where = f"node {scope.prefix + (node.name or node.output[0])!r} ({key})"
        if any(self._refused.is_lost(x) for x in node.input):
            self._go_without(node, key, scope, where)
            return
        missing = [x for x in node.input if x and x not in self._known.types]
        if missing:
            raise GraphError(f"{where} reads {missing}, which nothing before it makes.")
        if key == "CastLike":
            node, key = cast_of(node, self._known.type(node.input[1])), "Cast"
        local = self._functions.get((node.domain, node.op_type, node.overload))
        local = local or contrib_function(node, self._known.types, self._known.values)
        if local is not None:
            self._expand(local, node, scope, where)
        elif not self._is_answered(node, key, scope):
            self._operator(node, key, scope, where)

    def _output(self, formal: str, scope: Scope) -> str:
        if not scope.depth or not formal:
            return str(formal)
        return self._known.fresh(f"{scope.prefix}{formal}")

    def _is_answered(self, node: Any, key: str, scope: Scope) -> bool:
        """Constants, shapes, and branches whose condition is known, need nothing to run."""
        known = self._known
        match key:
            case "Constant":
                known.know(node.output[0], constant(node, self._model.external))
            case "Shape" | "Size":
                known.know(node.output[0], size_of(node, known.type(node.input[0])))
            case "If" if node.input[0] in known.values:
                self._branch(node, bool(np.all(known.values[node.input[0]])), scope)
            case "Dropout" if drops_nothing(node, known.values):
                known.rename(node.input[0], node.output[0])
                if len(node.output) > 1 and node.output[1]:
                    known.know(node.output[1], np.ones(known.type(node.input[0]).shape, np.bool_))
            case _:
                return False
        return True

    def _operator(self, node: Any, key: str, scope: Scope, where: str) -> None:
        known = self._known
        schema = scope.schema(node)
        if schema is None or is_refused(key) or not _means_the_same(schema, node, scope.opsets):
            self._refused.refuse(node, key, where)
            return
        check_attributes(schema, node, where)
        check_types(schema, node, known.types, where)
        check_axes(node, known.types, where)
        check_fit(node, known.types, where)
        check_indices(node, known.types, known.values, where)
        by_value = VALUE_INPUTS.get(key, ())
        known.check_values((x for i, x in enumerate(node.input) if i in by_value), where)
        types = self._made(schema, node, scope, where)
        check_reshape(node, known.types, types, where)
        for y, type_ in types.items():
            if type_ is not None:
                known.check_fits(y, type_)
        if all(x in known.values for x in node.input if x) and self._fold(node, key, scope, types):
            return
        if not self._keep(node, key, schema, types):
            function = function_of(schema, node, known.types)
            if function is None:
                self._refused.refuse(node, key, where)
            else:
                self._expand(function, node, scope, where)

    def _made(self, schema: Any, node: Any, scope: Scope, where: str) -> Mapping[str, TensorType | None]:
        """The type of each output; None where its shape depends on data."""
        types, values = self._known.types, self._known.values
        shape = known_shape(node, types, values)
        return {node.output[0]: shape} if shape else infer(schema, node, types, values, scope.opsets, where)

    def _keep(self, node: Any, key: str, schema: Any, types: Mapping[str, TensorType | None]) -> bool:
        """Add the node as it is said in the newest opset; False where there is no word or kernel."""
        attributes = {a.name: attribute(a, self._model.external) for a in node.attribute}
        kept = Node(key, tuple(node.input), tuple(node.output), attributes, node.name or node.output[0])
        self._known.types |= {y: t for y, t in types.items() if t is not None}
        adapted = adapt(kept, schema.since_version, self._known)
        if adapted is None or any(n.op not in self._supported for n in adapted):
            return False
        unknown = [y for y, t in types.items() if t is None]
        if unknown:
            raise GraphError(
                f"node {node.name or node.output[0]!r} ({key}) makes {unknown}, whose shape depends on "
                "data: a static program cannot hold it."
            )
        self._known.keep(adapted)
        return True

    def _fold(self, node: Any, key: str, scope: Scope, types: Mapping[str, TensorType | None]) -> bool:
        """Compute the node now, where that is worth it; False where it is not."""
        values = self._known.values
        taken = sum(values[x].nbytes for x in node.input if x)
        made = sum(t.n_bytes for t in types.values() if t is not None)
        is_float = all(t is None or t.dtype == "float32" for t in types.values())
        if self._keeps_lookups and key in _LOOKUPS and is_float:
            return False
        if not may_fold(key, taken, made, key in self._supported, is_float):
            return False
        found = fold(node, values, scope.opsets, types)
        for y, value in (found or {}).items():
            self._known.know(y, value)
        return found is not None

    def _expand(self, function: Any, node: Any, scope: Scope, where: str) -> None:
        """Walk a function's body in the node's place."""
        if scope.depth >= MAX_DEPTH:
            raise GraphError(f"{where}: functions call each other more than {MAX_DEPTH} deep.")
        inside = scope.of_function(function, node)
        self._walk(function.node, inside)
        self._return(function.output, node, inside)

    def _branch(self, node: Any, taken: bool, scope: Scope) -> None:
        """Walk the branch that is taken in the node's place."""
        if scope.depth >= MAX_DEPTH:
            raise GraphError(f"branches are nested more than {MAX_DEPTH} deep.")
        wanted = "then_branch" if taken else "else_branch"
        body = next(a.g for a in node.attribute if a.name == wanted)
        inside = scope.of_branch(node)
        for tensor in body.initializer:
            value = array_of(tensor, self._model.external)
            inside.names[tensor.name] = self._known.constant(inside.prefix + tensor.name, value)
        self._walk(body.node, inside)
        self._return([v.name for v in body.output], node, inside)

    def _return(self, results: Iterable[str], node: Any, inside: Scope) -> None:
        """Give the results of a body the names that its caller uses."""
        for formal, outer in zip(results, node.output, strict=False):
            if not outer:
                continue
            inner = inside.name(formal)
            if self._refused.is_lost(inner):
                self._refused.lose([outer])
            else:
                self._known.rename(inner, outer)

    def _go_without(self, node: Any, key: str, scope: Scope, where: str) -> None:
        """What a node makes is lost with its inputs; it is refused too if it could not be compiled itself."""
        self._refused.lose(node.output)
        is_local = (node.domain, node.op_type, node.overload) in self._functions
        if is_local or key in self._supported or key in CONTRIB or key in ("Constant", "Shape", "Size"):
            return
        schema = scope.schema(node)
        if schema is None or not (schema.has_function or schema.has_context_dependent_function):
            self._refused.refuse(node, key, where)


def _means_the_same(schema: Any, node: Any, opsets: Mapping[str, int]) -> bool:
    """Whether an operator of a very old opset is still the one that is translated."""
    if node.domain not in ("", "ai.onnx") or opsets.get("", BROADCASTING_OPSET) >= BROADCASTING_OPSET:
        return True
    later = schema_of(node.domain, node.op_type, BROADCASTING_OPSET)
    return node.op_type in SAME_BEFORE_7 or (
        later is not None and later.since_version == schema.since_version
    )
