"""Read ONNX nodes and check them against their schemas: attributes, input and output types, function
bodies.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, TypeProto

from pliant.errors import GraphError, ShapeError
from pliant.ir.graph import Attribute, Node, TensorType
from pliant.models.onnx.onnx_external import ExternalData
from pliant.models.onnx.onnx_tensor import ELEMENT_TYPES, array_of, as_proto, dtype_name

_REFUSALS = (
    *(onnx.shape_inference.InferenceError, onnx.checker.ValidationError),
    *(RuntimeError, ValueError, IndexError),
)

_READABLE = frozenset(
    (
        *(AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.STRING, AttributeProto.TENSOR),
        *(AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.STRINGS),
    )
)

# Longer arrays do not determine shapes.
_LONGEST_SHAPE_DATA = 4096


def operator_key(domain: str, op: str) -> str:
    """An operator's name in an ir graph: bare in ONNX's own domain."""
    return op if domain in ("", "ai.onnx") else f"{domain}.{op}"


@cache
def schema_of(domain: str, op: str, version: int) -> Any | None:
    """The schema in force at an opset version; None if the installed onnx has none."""
    try:
        return onnx.defs.get_schema(op, version, "" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return None


def attribute(proto: Any, external: ExternalData) -> Attribute:
    """An attribute's value. Raises GraphError for graphs, types and lists of tensors."""
    match proto.type:
        case AttributeProto.INT:
            return int(proto.i)
        case AttributeProto.FLOAT:
            return float(proto.f)
        case AttributeProto.STRING:
            return str(proto.s.decode("utf-8", "replace"))
        case AttributeProto.INTS:
            return tuple(int(i) for i in proto.ints)
        case AttributeProto.FLOATS:
            return tuple(float(f) for f in proto.floats)
        case AttributeProto.STRINGS:
            return tuple(s.decode("utf-8", "replace") for s in proto.strings)
        case AttributeProto.TENSOR:
            return array_of(proto.t, external)
    kind = AttributeProto.AttributeType.Name(proto.type).lower()
    raise GraphError(f"attribute {proto.name!r} is of kind {kind}, which is not supported.")


def node_of(proto: Any, external: ExternalData | None = None) -> Node:
    """A node as in the file, for reading its attributes; attributes that `Node` does not support (bodies,
    types) are left out.

    Messages name a node without a name by its first output.
    """
    files = ExternalData(None) if external is None else external
    attributes = {a.name: attribute(a, files) for a in proto.attribute if a.type in _READABLE}
    label = proto.name or (proto.output[0] if proto.output else "")
    return Node(proto.op_type, tuple(proto.input), tuple(proto.output), attributes, label)


def type_proto(type_: TensorType) -> Any:
    return onnx.helper.make_tensor_type_proto(ELEMENT_TYPES[type_.dtype], type_.shape)


def check_attributes(schema: Any, node: Any, where: str) -> None:
    """Raises GraphError naming node and attribute when a value's kind violates the schema.

    ONNX's checker does not see the values that callers of a function pass to its body.
    """
    for a in node.attribute:
        declared = schema.attributes.get(a.name)
        if declared is not None and int(declared.type.value) != a.type:
            kinds = [AttributeProto.AttributeType.Name(k).lower() for k in (a.type, int(declared.type.value))]
            raise GraphError(f"{where}: attribute {a.name!r} is of kind {kinds[0]}, but must be {kinds[1]}.")


def check_types(schema: Any, node: Any, types: Mapping[str, TensorType], where: str) -> None:
    """Raises GraphError naming node and tensor when an input's element type violates the schema."""
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    chosen: dict[str, tuple[str, str]] = {}
    for i, x in enumerate(node.input):
        if not x:
            continue
        if not schema.inputs:
            raise GraphError(f"{where} has inputs, but {node.op_type} takes none.")
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        variable = formal.type_str
        name = _onnx_type_name(types[x].dtype)
        if name not in allowed.get(variable, [variable]):
            raise GraphError(f"{where}: input {x!r} is {types[x]}, which {node.op_type} does not take there.")
        if not formal.is_homogeneous or variable not in allowed:
            continue
        first, dtype = chosen.setdefault(variable, (x, types[x].dtype))
        if dtype != types[x].dtype:
            raise GraphError(f"{where}: input {x!r} is {types[x]}, but {first!r} is {types[first]}.")


def check_axes(node: Any, types: Mapping[str, TensorType], where: str) -> None:
    """Raise GraphError for an axis that the first input does not have, and for other invalid numbers.

    ONNX's inference terminates the process on some of them.
    """
    for a in node.attribute:
        if a.name in _SMALLEST and a.i < _SMALLEST[a.name]:
            raise GraphError(f"{where}: {a.name} is {a.i}; it must be at least {_SMALLEST[a.name]}.")
    read = node_of(node)
    batch_dims = read.integer("batch_dims", 0)
    if batch_dims and any(batch_dims >= len(types[x].shape) for x in node.input[:2]):
        raise GraphError(f"{where}: batch_dims is {batch_dims}, more than its inputs have.")
    parts = read.integer("num_outputs", None)
    if node.op_type == "Split" and parts is not None and parts != len(node.output):
        raise GraphError(f"{where}: num_outputs is {parts}, but there are {len(node.output)} outputs.")
    if not node.input or not node.input[0]:
        return
    rank = max(len(types[node.input[0]].shape), 1)
    more_below, more_above = _AXIS_ROOM.get(node.op_type, (0, 0))
    for a in node.attribute:
        given = {"axis": [a.i], "axes": list(a.ints)}.get(a.name, [])
        room = len(given) if node.op_type == "Unsqueeze" else 0
        for axis in given:
            if not -rank - room - more_below <= axis < rank + room + more_above:
                raise GraphError(
                    f"{where}: {a.name} {axis} is none of {node.input[0]!r}, {types[node.input[0]]}."
                )


_SMALLEST = {"batch_dims": 0, "group": 1, "num_groups": 1, "blocksize": 1, "num_outputs": 1}

# How far axes may lie outside those of the first input: below -rank, above rank - 1.
_AXIS_ROOM = {"Flatten": (0, 1), "OneHot": (1, 1), "QuantizeLinear": (0, 1), "DequantizeLinear": (0, 1)}


_ROUNDED_UP, _ROUNDED_OPSET = ("MaxPool", "AveragePool", "LpPool"), 22
"""Pools with `ceil_mode`, and the opset whose inference leaves out windows without an element."""


def infer(
    schema: Any,
    node: Any,
    types: Mapping[str, TensorType],
    values: Mapping[str, np.ndarray],
    opsets: Mapping[str, int],
    where: str,
) -> dict[str, TensorType | None]:
    """The types of a node's outputs from its inputs' types and known values; None where a size is unknown.

    Raises ShapeError naming the node when ONNX's inference reports a mismatch, GraphError naming the tensor
    when an output is not a tensor.
    """
    data = {
        x: as_proto(x, values[x]) for x in node.input if x in values and values[x].size <= _LONGEST_SHAPE_DATA
    }
    if node.op_type in _ROUNDED_UP and not node.domain:  # before, windows could begin behind the image
        schema = onnx.defs.get_schema(node.op_type, _ROUNDED_OPSET)
        opsets = {**opsets, "": _ROUNDED_OPSET}
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    given = {x: type_proto(types[x]) for x in node.input if x}
    try:
        inferred = onnx.shape_inference.infer_node_outputs(schema, node, given, data, opset_imports=imports)
    except _REFUSALS as error:
        shown = ", ".join(f"{x}: {types[x]}" for x in node.input if x)
        raise ShapeError(f"{where} does not fit its inputs ({shown}): {one_line(error)}", where) from error
    return {y: _static(inferred.get(y), y) for y in node.output if y}


def _static(proto: Any, name: str) -> TensorType | None:
    kind = None if proto is None else proto.WhichOneof("value")
    if kind is None:
        return None
    if kind != "tensor_type":
        raise GraphError(f"tensor {name!r} is a {kind.removesuffix('_type')}, which is not supported.")
    tensor = proto.tensor_type
    if not tensor.elem_type:
        return None
    dtype = dtype_name(tensor.elem_type, name)
    if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    shape = tuple(d.dim_value for d in tensor.shape.dim)
    if any(d < 0 for d in shape):
        raise GraphError(f"tensor {name!r} would have the shape {list(shape)}.")
    return TensorType(dtype, shape)


def function_of(schema: Any, node: Any, types: Mapping[str, TensorType]) -> Any | None:
    """ONNX's function body of an operator with these inputs, as a FunctionProto; None if it has none."""
    function = FunctionProto()
    if schema.has_function:
        found = schema.get_function_with_opset_version(max(schema.function_opset_versions))
    elif schema.has_context_dependent_function:
        given = [(type_proto(types[x]) if x else TypeProto()).SerializeToString() for x in node.input]
        version = max(schema.context_dependent_function_opset_versions)
        try:
            found = schema.get_context_dependent_function_with_opset_version(
                version, node.SerializeToString(), given
            )
        except (RuntimeError, ValueError):
            return None
    else:
        return None
    if not found:
        return None
    function.ParseFromString(found if isinstance(found, bytes) else found.SerializeToString())
    return function


def rename_tensors(
    node: Any, rename: Callable[[str], str], outputs: Sequence[str], attributes: Mapping[str, Any]
) -> Any:
    """A copy with renamed tensors, and with references to function attributes resolved from `attributes`.

    A reference to an attribute that the caller did not set is left out.
    """
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.input[:]
    copy.input.extend(rename(x) if x else "" for x in node.input)
    del copy.output[:]
    copy.output.extend(outputs)
    if any(a.ref_attr_name for a in node.attribute):
        del copy.attribute[:]
        for a in node.attribute:
            if not a.ref_attr_name:
                copy.attribute.append(a)
            elif a.ref_attr_name in attributes:
                copy.attribute.append(attributes[a.ref_attr_name])
                copy.attribute[-1].name = a.name
    return copy


def _onnx_type_name(dtype: str) -> str:
    name = TensorProto.DataType.Name(ELEMENT_TYPES[dtype]).lower()
    return f"tensor({name})"


def one_line(error: BaseException) -> str:
    """The message of an error, of at most 500 characters, without its line breaks."""
    return " ".join(line.strip() for line in str(error).splitlines() if line.strip())[:500]
