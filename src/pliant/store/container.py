"""Lay out and write safetensors files whose tensors begin on disk blocks.

safetensors allows no holes, so gaps are U8 tensors named `pad.*`, and the header is padded with spaces.
"""

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO

import numpy as np
import xxhash

from pliant.errors import StoreError

BLOCK = 4096
_DTYPES = {"U8": 1, "U16": 2, "BF16": 2, "F16": 2, "U32": 4, "F32": 4, "U64": 8}
_NUMPY = {"U8": "u1", "U16": "<u2", "BF16": "<u2", "F16": "<f2", "U32": "<u4", "F32": "<f4", "U64": "<u8"}
Opener = Callable[[Path], IO[bytes]]


@dataclass(frozen=True, slots=True)
class TensorField:
    """One tensor of a file: its name, safetensors dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        count = 1
        for n in self.shape:
            count *= n
        return count * _DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class FileLayout:
    """A file's header and, for each of its fields (padding not counted), the offset from the file's start."""

    header: bytes
    fields: tuple[TensorField, ...]
    offsets: tuple[int, ...]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Properties of a finished file: bytes, SHA-256, and XXH3-64 of its first `checked_bytes`."""

    n_bytes: int
    sha256: str
    checked_bytes: int
    xxh3: int


def lay_out(fields: Sequence[TensorField], alignment: int = 64) -> FileLayout:
    """Place `fields` one after the other, each on a multiple of `alignment`; the file's end is aligned
    too.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pliant"}}
    starts: list[int] = []
    end = 0
    for i, field in enumerate(fields):
        starts.append(end)
        entries[field.name] = _entry(field, end)
        end += field.n_bytes
        gap = -end % alignment
        if gap:
            entries[f"pad.{i}"] = _entry(TensorField("", "U8", (gap,)), end)
            end += gap
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % alignment)
    header = struct.pack("<Q", len(text)) + text
    return FileLayout(header, tuple(fields), tuple(len(header) + s for s in starts), len(header) + end)


def write_file(
    path: Path,
    layout: FileLayout,
    arrays: Iterable[np.ndarray],
    open_file: Opener,
    checked_bytes: int | None = None,
) -> FileDigest:
    """Write the arrays of `layout.fields`, in their order, and flush them to the disk.

    `checked_bytes` is the number of leading bytes whose XXH3 is recorded (None: all of them). OSError is
    passed on.
    """
    limit = layout.n_bytes if checked_bytes is None else checked_bytes
    identity, quick = sha256(), xxhash.xxh3_64()
    written = 0
    with open_file(path) as file:
        for chunk in _chunks(layout, arrays):
            file.write(chunk)
            identity.update(chunk)
            if written < limit:
                quick.update(chunk[: limit - written])
            written += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    assert written == layout.n_bytes, (path, written, layout.n_bytes)
    return FileDigest(layout.n_bytes, identity.hexdigest(), limit, quick.intdigest())


def read_layout(path: Path, data: memoryview | bytes) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """(dtype, shape, offset from the file's start) of each tensor, from bytes that begin with the header.

    Raises StoreError when the header is no safetensors header or points outside `data`.
    """
    try:
        (length,) = struct.unpack("<Q", data[:8])
        entries = json.loads(bytes(data[8 : 8 + length]))
        entries.pop("__metadata__", None)
        found = {}
        for name, entry in entries.items():
            field = TensorField(name, entry["dtype"], tuple(entry["shape"]))
            begin, end = entry["data_offsets"]
            if end - begin != field.n_bytes or 8 + length + end > len(data):
                raise ValueError(name)
            found[name] = (field.dtype, field.shape, 8 + length + begin)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise StoreError(f"{path.name} has no valid safetensors header; build the store again.") from error
    return found


def view(data: memoryview | bytes, dtype: str, shape: tuple[int, ...], offset: int) -> np.ndarray:
    """A tensor of `read_layout` as an array over `data`, without a copy; BF16 as raw uint16."""
    count = TensorField("", dtype, shape).n_bytes // _DTYPES[dtype]
    return np.frombuffer(data, _NUMPY[dtype], count, offset).reshape(shape)


def dtype_name(array: np.ndarray) -> str:
    """The safetensors name of an array's dtype."""
    return {v.lstrip("<"): k for k, v in _NUMPY.items() if k != "BF16"}[array.dtype.str.lstrip("<|")]


def _entry(field: TensorField, begin: int) -> dict[str, object]:
    return {"dtype": field.dtype, "shape": list(field.shape), "data_offsets": [begin, begin + field.n_bytes]}


def _chunks(layout: FileLayout, arrays: Iterable[np.ndarray]) -> Iterator[memoryview]:
    at = len(layout.header)
    yield memoryview(layout.header)
    for field, offset, array in zip(layout.fields, layout.offsets, arrays, strict=True):
        assert array.nbytes == field.n_bytes, (field, array.shape, array.dtype)
        if offset > at:
            yield memoryview(bytes(offset - at))
        if array.nbytes:
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        at = offset + field.n_bytes
    if layout.n_bytes > at:
        yield memoryview(bytes(layout.n_bytes - at))
