"""Encode and decode tensors of the Open Inference Protocol, as JSON and as bytes.

BYTES tensors are numpy arrays of `bytes` objects here, and their dtype is called "bytes".
"""

import re
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any

import msgspec
import numpy as np

from pliant.errors import InputError
from pliant.ir.graph import numpy_type

DATATYPES = {
    "bool": "BOOL",
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{"float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64", "bytes": "BYTES"},
}
"""The protocol's datatype by numpy dtype name."""
DTYPES = {name: dtype for dtype, name in DATATYPES.items()}
_PREFIX_BYTES = 4
_FEW, _LARGE = 64, 1e38
_NESTED = re.compile(rb"\s*\[\s*\[")
_LISTS: dict[str, Any] = {"b": list[bool], "u": list[int], "i": list[int], "f": list[float], "O": list[str]}


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype for a name in `DATATYPES`."""
    return np.dtype(object) if dtype == "bytes" else numpy_type(dtype)


def read_json(dtype: str, shape: tuple[int, ...], data: msgspec.Raw) -> np.ndarray:
    """Decode `data`: a flat list in row-major order, or lists nested according to `shape`.

    Raises InputError for a wrong number or kind of elements, or numbers out of range.
    """
    kind = numpy_dtype(dtype).kind
    wanted = _LISTS["f" if kind == "V" else kind]
    if dtype != "bytes":
        _check_commas(data, shape)
    elif shape == (1,):
        wanted = tuple[str]  # decoding stops at the second element
    else:
        _check_quotes(data, shape)
    try:
        flat = msgspec.json.decode(data, type=wanted)
    except UnicodeDecodeError as error:
        raise InputError(f"`data` is not UTF-8: {error}.") from error
    except msgspec.DecodeError as error:
        if shape == (1,) or not _NESTED.match(data):
            raise InputError(
                f"`data` does not fit a shape of {list(shape)}, or its elements {DATATYPES[dtype]}: {error}."
            ) from error
        flat = _flatten(data, shape, wanted)
    _check_count(len(flat), shape)
    if dtype == "bytes":
        return _objects([_encode_text(text) for text in flat], shape)
    try:
        with np.errstate(over="raise"):
            return np.array(flat, numpy_dtype(dtype)).reshape(shape)
    except (OverflowError, FloatingPointError) as error:
        raise InputError(f"a number does not fit {DATATYPES[dtype]}: {error}.") from error


def read_bytes(dtype: str, shape: tuple[int, ...], data: memoryview) -> np.ndarray:
    """Decode `data`: little-endian elements, or for BYTES each element after its length in 4 bytes.

    Raises InputError if the number of bytes does not match `shape`.
    """
    if dtype == "bytes":
        return _objects(_elements(data, prod(shape)), shape)
    kind = numpy_dtype(dtype)  # native byte order: all targets of pliant are little-endian
    needed = prod(shape) * kind.itemsize
    if len(data) != needed:
        raise InputError(f"{DATATYPES[dtype]}{list(shape)} takes {needed} bytes, not {len(data)}.")
    if dtype == "bool" and needed and np.frombuffer(data, np.uint8).max() > 1:
        raise InputError("a BOOL is a byte of 0 or 1.")
    array = np.frombuffer(data, kind).reshape(shape)
    return array if array.flags.aligned else array.copy()


def write_json(array: np.ndarray, dtype: str) -> list[Any]:
    """The elements in row-major order; NaN and infinities, which JSON lacks, become null when encoded.

    Raises InputError for bytes that are not UTF-8: those need the binary form.
    """
    if dtype == "bytes":
        try:
            return [element.decode() for element in array.ravel()]
        except UnicodeDecodeError as error:
            raise InputError("this output is not UTF-8 text; ask for it with binary_data.") from error
    if dtype in ("float16", "bfloat16"):
        array = array.astype(np.float32)
    return array.ravel().tolist()


def write_bytes(array: np.ndarray, dtype: str) -> bytes:
    """The elements in row-major order, little-endian; each BYTES element after its length in 4 bytes."""
    if dtype == "bytes":
        return b"".join(chain.from_iterable((_length(element), element) for element in array.ravel()))
    return array.tobytes()


def _flatten(data: msgspec.Raw, shape: tuple[int, ...], wanted: Any) -> list[Any]:
    """Flatten nested lists. Raises InputError if they do not have the given shape."""
    nested: Any = wanted
    for _ in range(len(shape) - 1):
        nested = list[nested]
    try:
        level = msgspec.json.decode(data, type=nested)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"`data` does not fit its datatype and shape: {error}.") from error
    rows: list[Any] = [level]
    for n in shape:
        if any(len(row) != n for row in rows):
            raise InputError(f"`data` is not nested as its shape {list(shape)} says.")
        rows = list(chain.from_iterable(rows))
    return rows


def _elements(data: memoryview, n: int) -> list[bytes]:
    """Decode `n` elements, each after its length, with no other bytes."""
    found: list[bytes] = []
    at = 0
    for _ in range(n):
        end = at + _PREFIX_BYTES
        size = int.from_bytes(data[at:end], "little")
        if end + size > len(data):
            raise InputError(f"element {len(found)} of {n} ends after the {len(data)} bytes of its tensor.")
        found.append(bytes(data[end : end + size]))
        at = end + size
    if at != len(data):
        raise InputError(f"{n} elements take {at} bytes, but there are {len(data)}.")
    return found


def _objects(elements: list[bytes], shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


def _check_count(n: int, shape: tuple[int, ...]) -> None:
    if n != prod(shape):
        raise InputError(f"a shape of {list(shape)} takes {prod(shape)} elements, not {n}.")


def _check_commas(data: msgspec.Raw, shape: tuple[int, ...]) -> None:
    """Check the number of commas between numbers before decoding, which is slow and needs much memory."""
    n, n_given = prod(shape), bytes(data).count(b",") + 1
    if n_given > prod(max(1, dim) for dim in shape) or n_given < n:
        raise InputError(f"a shape of {list(shape)} takes {n} elements, not {n_given}.")


def _check_quotes(data: msgspec.Raw, shape: tuple[int, ...]) -> None:
    """Check the number of quotes before decoding.

    Each text has two unescaped quotes, or one if it ends with an escaped backslash, so at most twice as many
    texts as `shape` needs are decoded.
    """
    n, given = prod(shape), bytes(data)
    if given.count(b'"') - given.count(b'\\"') > 2 * n:
        raise InputError(f"a shape of {list(shape)} takes {n} elements; `data` has more.")


def _length(element: bytes) -> bytes:
    return len(element).to_bytes(_PREFIX_BYTES, "little")


def _encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"an element of BYTES is not valid Unicode: {error}.") from error


def is_plain(data: object, dtype: str, shape: Sequence[int]) -> bool:
    """Whether `data` has few elements that all certainly fit, so that no array is needed to check them."""
    if not isinstance(data, list) or len(data) != prod(shape) or len(data) > _FEW:
        return False
    if dtype == "bytes":
        return all(type(one) is str and one.isascii() for one in data)
    return dtype in ("float32", "float64") and all(
        type(one) is float and -_LARGE < one < _LARGE for one in data
    )
