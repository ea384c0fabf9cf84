"""Bind an ONNX model to fixed dimensions, as an ir graph.

One walk over the nodes infers each node's types at its own opset, folds known values (so computations on
shapes vanish), replaces operators without a kernel by their ONNX function, and converts the remaining nodes
to the newest opset.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, final

import numpy as np
from onnx import helper

from pliant.errors import GraphError
from pliant.ir.graph import Node, TensorType
from pliant.models.onnx.bind.onnx_blocks import (
    BoundPart,
    NodeBlock,
    ScopedNode,
    body_block,
    scope_nodes,
)
from pliant.models.onnx.bind.onnx_dims import input_types
from pliant.models.onnx.bind.onnx_fold import fold, may_fold
from pliant.models.onnx.bind.onnx_host import HOST, is_host
from pliant.models.onnx.bind.onnx_reachability import MAX_NODES, check_size, node_bodies, reachable_nodes
from pliant.models.onnx.bind.onnx_scope import MAX_DEPTH, Scope
from pliant.models.onnx.bind.onnx_shapes import VALUE_INPUTS, known_shape
from pliant.models.onnx.bind.onnx_unsupported import UnsupportedOperators
from pliant.models.onnx.bind.onnx_values import KnownValues
from pliant.models.onnx.onnx_adapt import adapt, means_the_same
from pliant.models.onnx.onnx_contrib import CONTRIB, contrib_function
from pliant.models.onnx.onnx_file import OnnxModel
from pliant.models.onnx.onnx_nodes import (
    attribute,
    check_attributes,
    check_axes,
    check_types,
    function_of,
    infer,
    operator_key,
)
from pliant.models.onnx.onnx_shape_checks import check_shapes
from pliant.models.onnx.onnx_static import STATIC_OPERATORS, cast_of, constant, drops_nothing, size_of
from pliant.models.onnx.onnx_value_checks import check_indices, check_reshape

MAX_TENSOR_BYTES = 1 << 40
_LOOKUPS = ("Gather", "Slice")


def bind_first(
    model: OnnxModel,
    dims: Mapping[str, int],
    values: Mapping[str, np.ndarray] | None = None,
    *,
    supported: Collection[str],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    max_bytes: int = MAX_TENSOR_BYTES,
    keeps_lookups: bool = False,
) -> BoundPart:
    """The part of `model` that can be bound, with symbolic dimensions `dims` and known inputs `values`.

    A dimension without a name is called `input.axis` ("x.0"). `shapes` gives inputs' whole shapes instead.
    `supported` names the operators with kernels; the functions of others are expanded. Inputs given by value
    are not inputs of the graph. A tensor of more than `max_bytes` is refused. With `keeps_lookups`, lookups
    in float32 constants stay nodes, so that other sizes can look up other rows.

    Raises InputError for dimensions that are missing, unknown or negative; MissingValueError when a shape
    depends on the value of inputs; ShapeError naming node and tensor when shapes do not match; GraphError for
    other mismatches, and one naming all operators that cannot be compiled.
    """
    types = input_types(model, dims, shapes or {})
    given = values or {}
    inputs = [name for name, type_ in types.items() if type_ is not None and name not in given]
    walk = _Walk(model, supported, max_bytes, count(), inputs, keeps_lookups)
    for name, array in model.constants.items():
        walk.known.set_value(name, array)
    for name, type_ in types.items():
        walk.add_input(name, type_, given.get(name))
    proto = model.proto.graph
    nodes = scope_nodes(reachable_nodes(proto), Scope(model.opsets), walk.known.fresh)
    return walk.part(nodes, inputs, [v.name for v in proto.output], is_first=True)


def bind_next(
    model: OnnxModel,
    block: NodeBlock,
    known: Mapping[str, np.ndarray],
    types: Mapping[str, TensorType | None],
    *,
    supported: Collection[str],
    number: str,
    max_bytes: int = MAX_TENSOR_BYTES,
    keeps_lookups: bool = False,
) -> BoundPart:
    """The part of a block that can be bound when its inputs are known: `types` of the tensors it reads, None
    for values that are no tensors.

    `known` are constant values. New names contain `number`, which is unique to this block, and are the same
    each time it is bound. Raises ShapeError and GraphError as `bind_first`.
    """
    walk = _Walk(model, supported, max_bytes, (f"{number}.{i}" for i in count()), (), keeps_lookups)
    for name in block.reads & known.keys():
        walk.known.set_value(name, known[name])
    for name, array in block.constants.items():
        walk.known.set_value(name, array)
    for name, type_ in types.items():
        walk.add_input(name, type_, None)
    inputs = [name for name, type_ in types.items() if type_ is not None]
    return walk.part(block.nodes, inputs, block.outputs)


@final
class _Walk:
    """One walk over a model: known values, waiting nodes, refused operators.

    `inputs` are the inputs whose values may be requested.
    """

    def __init__(
        self,
        model: OnnxModel,
        supported: Collection[str],
        max_bytes: int,
        numbers: Iterator[object],
        inputs: Collection[str],
        keeps_lookups: bool = False,
    ) -> None:
        self._keeps_lookups = keeps_lookups
        self._model = model
        self._supported = supported
        self.known = self._known = KnownValues(max_bytes, numbers)
        self._inputs = inputs
        self._odd: set[str] = set()  # sequences, optional values, text: not accepted by kernels
        self._late: set[str] = set()
        self._waiting: list[ScopedNode] = []
        self._refused = UnsupportedOperators()
        self._visited = 0
        self._functions = {(f.domain, f.name, f.overload): f for f in model.proto.functions}
        check_size(model.proto, self._functions, model.source)

    def add_input(self, name: str, type_: TensorType | None, value: np.ndarray | None) -> None:
        if type_ is None:
            self._odd.add(name)
            return
        self._known.check_fits(name, type_)
        self._known.types[name] = type_
        if value is not None:
            self._known.values[name] = value

    def part(
        self,
        nodes: Iterable[ScopedNode],
        inputs: list[str],
        outputs: Collection[str],
        *,
        is_first: bool = False,
    ) -> BoundPart:
        """Bind as many nodes as possible; `outputs` are those of the whole block. The first part may be a
        whole model.
        """
        try:
            self._walk(nodes)
        except UnicodeError as error:
            raise GraphError(f"{self._model.source} holds names that are not text: {error}.") from error
        self._refused.check_none(self._model.source)
        known = self._known
        name = self._model.proto.graph.name or "graph"
        if is_first and not self._waiting and not self._odd:
            return BoundPart(known.graph(name, inputs, list(outputs)), (), {})
        wanted = {x for scoped in self._waiting for x in scoped.reads} | set(outputs)
        made = [y for y in known.made if y in wanted]
        read = {x for node in known.made.values() for x in node.inputs}
        graph = known.graph(name, [x for x in inputs if x in read], made)
        return BoundPart(graph, tuple(self._waiting), {x: a for x, a in known.values.items() if x in wanted})

    def _walk(self, nodes: Iterable[ScopedNode]) -> None:
        for scoped in nodes:
            self._visited += 1
            if self._visited > MAX_NODES:
                raise GraphError(f"{self._model.source} expands to more than {MAX_NODES} nodes.")
            self._visit(scoped)

    def _visit(self, scoped: ScopedNode) -> None:
        node, scope = scoped.node, scoped.scope
        key = operator_key(node.domain, node.op_type)
        where = f"node {scope.prefix + (node.name or node.output[0])!r} ({key})"
        if any(self._refused.is_lost(x) for x in node.input):
            self._refused.mark_lost(node.output)
            self._check_possible(node, key, scope, where)
            return
        missing = [x for x in node.input if x and not self._is_defined(x)]
        if missing:
            raise GraphError(f"{where} reads {missing}, which nothing before it makes.")
        if key == "If" and node.input[0] in self._known.values:
            self._branch(scoped, bool(np.all(self._known.values[node.input[0]])))
        elif self._late.intersection(node.input):
            self._check_possible(node, key, scope, where)
            self._wait(scoped, is_host(node))
        elif self._odd.intersection(node.input):
            self._wait_odd(scoped, key, where)
        else:
            self._bind_node(scoped, key, where)

    def _is_defined(self, tensor: str) -> bool:
        return tensor in self._known.types or tensor in self._late or tensor in self._odd

    def _wait(self, scoped: ScopedNode, is_host: bool = False) -> None:
        """Defer a node: a tensor that it reads is not known yet, or no kernel runs it."""
        self._late.update(scoped.makes)
        self._waiting.append(ScopedNode(scoped.node, scoped.scope, is_host))

    def _wait_odd(self, scoped: ScopedNode, key: str, where: str) -> None:
        if key in HOST or key == "Identity":
            self._wait(scoped, is_host=True)
        elif function := self._functions.get((scoped.node.domain, scoped.node.op_type, scoped.node.overload)):
            self._expand(function, scoped, where)
        else:
            odd = sorted(self._odd.intersection(scoped.node.input))
            raise GraphError(f"{where} reads {odd}, which are not tensors of numbers.")

    def _bind_node(self, scoped: ScopedNode, key: str, where: str) -> None:
        """Bind a node whose inputs' types are known."""
        node, scope = scoped.node, scoped.scope
        if key == "CastLike":
            node, key = cast_of(node, self._known.type(node.input[1])), "Cast"
            scoped = ScopedNode(node, scope)
        local = self._functions.get((node.domain, node.op_type, node.overload))
        local = local or contrib_function(node, self._known.types, self._known.values)
        if local is not None:
            self._expand(local, scoped, where)
        elif not self._is_evaluated(scoped, key, where):
            self._operator(scoped, key, where)

    def _is_evaluated(self, scoped: ScopedNode, key: str, where: str) -> bool:
        """Evaluate constants and shapes, which need no kernel. Raises MissingValueError for a condition that
        depends on an input.
        """
        known, node = self._known, scoped.node
        match key:
            case "Constant":
                known.set_value(node.output[0], constant(node, self._model.external))
            case "Shape" | "Size":
                known.set_value(node.output[0], size_of(node, known.type(node.input[0])))
            case "If":
                known.check_values(node.input[:1], self._flags, where)
                return False
            case "Dropout" if drops_nothing(node, known.values):
                known.rename(node.input[0], node.output[0])
                if len(node.output) > 1 and node.output[1]:
                    known.set_value(node.output[1], np.ones(known.type(node.input[0]).shape, np.bool_))
            case _:
                return False
        return True

    @property
    def _flags(self) -> list[str]:
        """Inputs of one boolean or integer: compiling a program per value is better than a branch."""
        types = self._known.types
        return [x for x in self._inputs if types[x].size == 1 and types[x].numpy.kind in "biu"]

    def _operator(self, scoped: ScopedNode, key: str, where: str) -> None:
        known, node, scope = self._known, scoped.node, scoped.scope
        schema = scope.schema(node)
        if schema is None or not means_the_same(schema, node, scope.opsets):
            self._refused.refuse(node, key, where)
            return
        check_attributes(schema, node, where)
        if is_host(node):
            self._check_possible(node, key, scope, where)
            self._wait(scoped, is_host=True)
            return
        check_types(schema, node, known.types, where)
        check_axes(node, known.types, where)
        check_shapes(node, known.types, where)
        check_indices(node, known.types, known.values, where)
        by_value = VALUE_INPUTS.get(key, ())
        unknown = known.find_unknown(x for i, x in enumerate(node.input) if i in by_value)
        if unknown:
            known.check_values(unknown, self._inputs, where)
            self._wait(scoped, is_host=True)
            return
        types = self._infer_types(schema, node, scope, where)
        check_reshape(node, known.types, types, where)
        for y, type_ in types.items():
            if type_ is not None:
                known.check_fits(y, type_)
        if all(x in known.values for x in node.input if x) and self._fold(node, key, scope, types):
            return
        if not self._keep(scoped, key, schema, types):
            function = function_of(schema, node, known.types)
            if function is None:
                self._refused.refuse(node, key, where)
            else:
                self._expand(function, scoped, where)

    def _infer_types(
        self, schema: Any, node: Any, scope: Scope, where: str
    ) -> Mapping[str, TensorType | None]:
        """The type of each output; None where its shape depends on data."""
        types, values = self._known.types, self._known.values
        shape = known_shape(node, types, values)
        return {node.output[0]: shape} if shape else infer(schema, node, types, values, scope.opsets, where)

    def _keep(
        self, scoped: ScopedNode, key: str, schema: Any, types: Mapping[str, TensorType | None]
    ) -> bool:
        """Add the node, converted to the newest opset; False if it cannot be converted or has no kernel.

        It is deferred if its output shape depends on data.
        """
        node = scoped.node
        attributes = {a.name: attribute(a, self._model.external) for a in node.attribute}
        kept = Node(key, tuple(node.input), tuple(node.output), attributes, node.name or node.output[0])
        self._known.types |= {y: t for y, t in types.items() if t is not None}
        adapted = adapt(kept, schema.since_version, self._known)
        if adapted is None or any(n.op not in self._supported for n in adapted):
            return False
        if any(t is None for t in types.values()):
            self._wait(scoped, is_host=True)
            return True
        self._known.keep(adapted)
        return True

    def _fold(self, node: Any, key: str, scope: Scope, types: Mapping[str, TensorType | None]) -> bool:
        """Compute the node now if that is worthwhile; False if not."""
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
            self._known.set_value(y, value)
        return found is not None

    def _expand(self, function: Any, scoped: ScopedNode, where: str) -> None:
        """Walk a function's body instead of the node."""
        if scoped.scope.depth >= MAX_DEPTH:
            raise GraphError(f"{where}: functions call each other more than {MAX_DEPTH} deep.")
        inside = scoped.scope.function_scope(function, scoped.node)
        self._walk(scope_nodes(function.node, inside, self._known.fresh))
        wanted = (x if y else "" for x, y in zip(function.output, scoped.node.output, strict=False))
        self._return((inside.name(x) if x else "" for x in wanted), scoped)

    def _branch(self, scoped: ScopedNode, taken: bool) -> None:
        """Walk the taken branch instead of the node."""
        if scoped.scope.depth >= MAX_DEPTH:
            raise GraphError(f"branches are nested more than {MAX_DEPTH} deep.")
        wanted = "then_branch" if taken else "else_branch"
        body = next(a.g for a in scoped.node.attribute if a.name == wanted)
        block = body_block(body, scoped, self._known.fresh, self._model.external)
        for name, value in block.constants.items():
            self._known.set_value(name, value)
        self._walk(block.nodes)
        self._return(block.outputs, scoped)

    def _return(self, results: Iterable[str], scoped: ScopedNode) -> None:
        """Give the results of a body the names that its caller uses."""
        for inner, outer in zip(results, scoped.node.output, strict=False):
            if not outer:
                continue
            if self._refused.is_lost(inner):
                self._refused.mark_lost([outer])
            elif inner in self._late or inner in self._odd:
                self._wait(ScopedNode(helper.make_node("Identity", [inner], [outer]), scoped.scope))
            else:
                self._known.rename(inner, outer)

    def _check_possible(self, node: Any, key: str, scope: Scope, where: str) -> None:
        """Refuse a deferred node, or nodes in its bodies, if its operator can never be run."""
        if (node.domain, node.op_type, node.overload) in self._functions:
            return
        schema = scope.schema(node)
        if not (key in self._supported or key in CONTRIB or key in STATIC_OPERATORS or key in HOST) and (
            schema is None or not (schema.has_function or schema.has_context_dependent_function)
        ):
            self._refused.refuse(node, key, where)
        for body in node_bodies(node):
            for inner in body.node:
                inner_key = operator_key(inner.domain, inner.op_type)
                at = f"node {scope.prefix + (inner.name or inner.output[0])!r} ({inner_key})"
                self._check_possible(inner, inner_key, scope, at)
