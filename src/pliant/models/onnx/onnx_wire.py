"""Find the weights inside an ONNX file's bytes without copying them.

The protobuf library parses a `ModelProto` with all its weights, and copies them on every access. This module
scans the file first: long `raw_data` fields of the graph's initializers are cut out and returned as spans of
the file, so that the library parses little and weights stay mapped.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pliant.errors import ModelError

# Field numbers of onnx.proto, which never change.
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _BYTES, _GROUP_START, _GROUP_END, _FIXED32 = 0, 1, 2, 3, 4, 5
_MAX_VARINT_BYTES = 10

MIN_BYTES = 4096
"""Shorter weights are left to the protobuf library."""


@dataclass(frozen=True, slots=True)
class ByteSpan:
    """`n_bytes` of the file from byte `start` on."""

    start: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Outline:
    """A model's bytes without its long weights, and the span of each initializer's weights, in order."""

    model: bytes
    weights: tuple[ByteSpan | None, ...]


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    wire_type: int
    start: int  # of the tag
    payload: int
    end: int


def outline(data: memoryview, min_bytes: int = MIN_BYTES) -> Outline:
    """Cut initializers' weights of `min_bytes` or more out of a serialised ModelProto.

    Raises ModelError for bytes that are not a valid protobuf or are truncated.
    """
    parts: list[bytes | memoryview] = []
    weights: list[ByteSpan | None] = []
    for field in _fields(data, 0, len(data)):
        if (field.number, field.wire_type) == (_MODEL_GRAPH, _BYTES):
            graph = _cut_graph(data, field, weights, min_bytes)
            parts += [_tag(_MODEL_GRAPH), _varint(len(graph)), graph]
        else:
            parts.append(data[field.start : field.end])
    return Outline(b"".join(parts), tuple(weights))


def _cut_graph(data: memoryview, graph: _Field, weights: list[ByteSpan | None], min_bytes: int) -> bytes:
    parts: list[bytes | memoryview] = []
    for field in _fields(data, graph.payload, graph.end):
        if (field.number, field.wire_type) != (_GRAPH_INITIALIZER, _BYTES):
            parts.append(data[field.start : field.end])
            continue
        inside = list(_fields(data, field.payload, field.end))
        raws = [f for f in inside if (f.number, f.wire_type) == (_TENSOR_RAW_DATA, _BYTES)]
        if not raws or raws[-1].end - raws[-1].payload < min_bytes:
            weights.append(None)
            parts.append(data[field.start : field.end])
            continue
        weights.append(ByteSpan(raws[-1].payload, raws[-1].end - raws[-1].payload))
        tensor = b"".join(data[f.start : f.end] for f in inside if f.number != _TENSOR_RAW_DATA)
        parts += [_tag(_GRAPH_INITIALIZER), _varint(len(tensor)), tensor]
    return b"".join(parts)


def _fields(data: memoryview, at: int, end: int) -> Iterator[_Field]:
    while at < end:
        start = at
        tag, at = _read_varint(data, at, end)
        number, wire_type = tag >> 3, tag & 7
        payload = at
        if wire_type == _VARINT:
            _, at = _read_varint(data, at, end)
        elif wire_type == _FIXED64:
            at += 8
        elif wire_type == _FIXED32:
            at += 4
        elif wire_type == _BYTES:
            length, payload = _read_varint(data, at, end)
            at = payload + length
        else:
            raise ModelError(
                f"byte {start} is not a protobuf field: this is not an ONNX file, or it is damaged."
            )
        if number == 0 or at > end:
            raise ModelError(
                f"a field at byte {start} claims to end at byte {at}, but only {end} are there: "
                "the file is truncated, damaged, or not an ONNX file."
            )
        yield _Field(number, wire_type, start, payload, at)


def _read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = 0
    for i in range(_MAX_VARINT_BYTES):
        if at + i >= end:
            break
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise ModelError(
        f"the number at byte {at} has no end: the file is truncated, damaged, or not an ONNX file."
    )


def _tag(number: int) -> bytes:
    return bytes([number << 3 | _BYTES])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
