"""ONNX tensors as numpy arrays, every size checked before it is believed. Knows no graph or operator."""

import mmap
from math import prod
from pathlib import Path
from typing import Any, final

import numpy as np
from onnx import TensorProto, numpy_helper

from pliant.errors import GraphError, ModelError
from pliant.ir.graph import TensorType

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
"""ONNX's element types that have a numpy one, by its name. Strings and complex numbers are refused."""

ELEMENT_TYPES = {name: code for code, name in DTYPES.items()}

_BITS = {"float4_e2m1fn": 4, "int4": 4, "uint4": 4, "uint2": 2, "int2": 2}
# Where a value is not in raw_data: the field of its type, and values of the field for each 8 bytes or less.
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


def array_of(proto: Any, external: "ExternalData", raw: memoryview | None = None) -> np.ndarray:
    """The values of a TensorProto; `raw` are its bytes where they were cut out of it.

    Long weights are views of `raw` or of the mapped external file, read-only and perhaps unaligned.
    Raises ModelError where the values do not fill the shape, GraphError for types not supported.
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
    array = np.frombuffer(raw, TensorType(dtype, ()).numpy).reshape(shape)
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


@final
class ExternalData:
    """Files beside a model that hold its weights, each mapped once; `directory` is None for one in memory.

    The maps live as long as arrays made from them.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._files: dict[str, memoryview] = {}

    @property
    def files(self) -> tuple[memoryview, ...]:
        """What is mapped."""
        return tuple(self._files.values())

    def read(self, proto: Any, n_bytes: int) -> memoryview:
        """The bytes of an external tensor. Raises ModelError naming tensor and file where they lack."""
        about = {entry.key: entry.value for entry in proto.external_data}
        location = about.get("location", "")
        file = self._file(location, proto.name)
        offset = _number(about.get("offset", "0"), proto.name)
        length = _number(about.get("length", str(n_bytes)), proto.name)
        if length != n_bytes or offset + n_bytes > len(file):
            raise ModelError(
                f"tensor {proto.name!r} needs {n_bytes} bytes; the model says bytes {offset} to "
                f"{offset + length} of {location!r}, which has {len(file)}."
            )
        return file[offset : offset + n_bytes]

    def _file(self, location: str, tensor: str) -> memoryview:
        if location not in self._files:
            self._files[location] = mapped(self._path(location, tensor))
        return self._files[location]

    def _path(self, location: str, tensor: str) -> Path:
        if self._directory is None:
            raise ModelError(
                f"the values of tensor {tensor!r} are in the file {location!r}, but the model came as bytes: "
                "give its path instead."
            )
        if not location or "\0" in location or Path(location).is_absolute():
            raise ModelError(f"tensor {tensor!r} names {location!r} as its file, which is no relative path.")
        base = self._directory.resolve()
        try:
            path = (base / location).resolve()
            inside, there = path.is_relative_to(base), path.is_file()
        except (OSError, RuntimeError) as error:
            raise ModelError(f"tensor {tensor!r} names an unusable file: {error}") from error
        if not inside:
            raise ModelError(
                f"tensor {tensor!r} names {location!r}, which is outside the model's folder {base}."
            )
        if not there:
            raise ModelError(f"the values of tensor {tensor!r} are in {path}, which does not exist.")
        return path


def mapped(path: Path) -> memoryview:
    """A file's bytes, mapped read-only. Raises ModelError when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error


def _number(text: str, tensor: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelError(f"tensor {tensor!r} gives {text!r} as a place in its external file.")
    return int(text)
