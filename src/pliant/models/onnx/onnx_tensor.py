"""Convert ONNX tensors to numpy arrays, checking every size."""

from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from pliant.errors import GraphError, ModelError
from pliant.ir.graph import TensorType, numpy_type
from pliant.models.onnx.onnx_external import ExternalData

DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.INT8: "int8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
    TensorProto.BOOL: "bool",
    TensorProto.FLOAT8E4M3FN: "float8_e4m3fn",
    TensorProto.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    TensorProto.FLOAT8E5M2: "float8_e5m2",
    TensorProto.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    TensorProto.FLOAT4E2M1: "float4_e2m1fn",
    TensorProto.INT4: "int4",
    TensorProto.UINT4: "uint4",
    # Older versions of onnx do not know these.
    24: "float8_e8m0fnu",
    25: "uint2",
    26: "int2",
}
"""The numpy names of ONNX's element types. Strings and complex numbers are refused."""

ELEMENT_TYPES = {name: code for code, name in DTYPES.items()}

_BITS = {"float4_e2m1fn": 4, "int4": 4, "uint4": 4, "uint2": 2, "int2": 2}
# For values that are not in raw_data: the field of the type, and values of the field per 8 bytes or less.
_TYPED_FIELDS = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
}
_ALIGNED_COPY_BYTES = 1 << 16


def dtype_name(element_type: int, tensor: str) -> str:
    """Numpy's name of an ONNX element type. Raises GraphError naming the tensor for one without."""
    if element_type not in DTYPES:
        known = element_type in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(element_type).lower() if known else f"type {element_type}"
        raise GraphError(f"tensor {tensor!r} holds {name} values, which are not supported.")
    return DTYPES[element_type]


def array_of(proto: Any, external: ExternalData, raw: memoryview | None = None) -> np.ndarray:
    """The values of a TensorProto; `raw` are its bytes, if they were cut out of it.

    Long weights are views of `raw` or of the mapped external file, read-only and perhaps unaligned.
    Raises ModelError if the values do not fill the shape, GraphError for unsupported types.
    """
    name = proto.name
    dtype = dtype_name(proto.data_type, name)
    shape = tuple(proto.dims)
    if any(d < 0 for d in shape):
        raise ModelError(f"tensor {name!r} has the shape {list(shape)}.")
    count = prod(shape)
    n_bytes = -(-count * _BITS.get(dtype, 8 * TensorType(dtype, ()).itemsize) // 8)
    if proto.data_location == TensorProto.EXTERNAL:
        raw = external.read(proto, n_bytes)
    elif raw is None and proto.HasField("raw_data"):
        raw = memoryview(proto.raw_data)
    if raw is None:
        return _from_fields(proto, dtype, count).reshape(shape)
    if len(raw) != n_bytes:
        raise ModelError(f"tensor {name!r}, {dtype}{list(shape)}, has {len(raw)} bytes, not {n_bytes}.")
    if dtype in _BITS:
        plain = TensorProto(data_type=proto.data_type, dims=shape, raw_data=bytes(raw))
        return np.asarray(numpy_helper.to_array(plain))
    array = np.frombuffer(raw, numpy_type(dtype)).reshape(shape)
    return array.copy() if n_bytes <= _ALIGNED_COPY_BYTES else array


def _from_fields(proto: Any, dtype: str, count: int) -> np.ndarray:
    field = _TYPED_FIELDS.get(proto.data_type, "int32_data")
    held = len(getattr(proto, field))
    wanted = -(-count * _BITS[dtype] // 8) if dtype in _BITS else count
    if held != wanted:
        raise ModelError(
            f"tensor {proto.name!r}, {dtype}{list(proto.dims)}, has {held} values, not {wanted}."
        )
    try:
        return np.asarray(numpy_helper.to_array(proto))
    except (ValueError, OverflowError, TypeError) as error:
        raise ModelError(f"tensor {proto.name!r} holds values that are no {dtype}: {error}") from error


def as_proto(name: str, array: np.ndarray) -> Any:
    """A small array as a TensorProto, for ONNX's own functions."""
    return numpy_helper.from_array(np.asarray(array), name)
