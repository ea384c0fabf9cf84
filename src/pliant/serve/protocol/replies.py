"""Responses of the Open Inference Protocol: written for a client, or checked when another node sent them."""

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.serve.protocol.inference import InferBody, InferRequest, split_body
from pliant.serve.protocol.oip_tensors import (
    DATATYPES,
    is_plain,
    numpy_dtype,
    read_json,
    write_bytes,
    write_json,
)
from pliant.serve.protocol.signature import Signature


class _ReplyOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] = {}
    data: Any = msgspec.UNSET


class _Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    model_name: str
    outputs: list[_ReplyOutput]
    id: str = ""
    parameters: dict[str, Any] = {}
    model_version: str = ""


class _ReplyHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """A response whose outputs are not decoded."""

    model_name: str
    outputs: msgspec.Raw
    id: str = ""
    parameters: dict[str, Any] = {}
    model_version: str = ""


_REPLY = msgspec.json.Decoder(_Reply)
_REPLY_HEAD = msgspec.json.Decoder(_ReplyHead)
_ENCODER = msgspec.json.Encoder()


def write_reply(
    request: InferRequest,
    answers: Mapping[str, np.ndarray],
    model: Signature,
    parameters: Mapping[str, Any] = MappingProxyType({}),
) -> InferBody:
    """Encode the response to `request`, with tensors in the requested form and further `parameters`.

    Raises InputError for text that is not UTF-8.
    """
    outputs, tail = [], []
    for wanted in request.outputs:
        port, array = wanted.port, answers[wanted.port.name]
        about = (port.name, DATATYPES[port.dtype], list(array.shape))
        if wanted.is_binary:
            tail.append(write_bytes(array, port.dtype))
            outputs.append(_ReplyOutput(*about, {"binary_data_size": len(tail[-1])}))
        else:
            outputs.append(_ReplyOutput(*about, data=write_json(array, port.dtype)))
    head = _ENCODER.encode(_Reply(model.name, outputs, request.id, dict(parameters), model.version))
    return InferBody(b"".join((head, *tail)), len(head)) if tail else InferBody(head, None)


def with_parameters(body: InferBody, parameters: Mapping[str, object], model: Signature) -> InferBody:
    """Add parameters and the version of the model to a checked response of another node."""
    head, tail = split_body(body.content, body.header_bytes)
    reply = _REPLY_HEAD.decode(head)
    said = {**reply.parameters, **parameters}
    head = _ENCODER.encode(structs.replace(reply, parameters=said, model_version=model.version))
    return InferBody(head + bytes(tail), None if body.header_bytes is None else len(head))


def answer_of(body: InferBody) -> tuple[_Reply, memoryview]:
    """Return a response's head and tensor bytes. Raises InputError for invalid JSON."""
    head, tail = split_body(body.content, body.header_bytes)
    try:
        return _REPLY.decode(head), tail
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the response is not valid JSON: {error}.") from error


def check_reply(body: InferBody, request: InferRequest, model: Signature) -> float | None:
    """Check another node's response to `request`; returns its accuracy. Raises InputError."""
    reply, tail = answer_of(body)
    asked = {wanted.port.name: wanted for wanted in request.outputs}
    if (
        reply.model_name != model.name
        or reply.id != request.id
        or {output.name for output in reply.outputs} != asked.keys()
    ):
        raise InputError(
            f"the response does not belong to this request: {reply.id!r}, {[o.name for o in reply.outputs]}."
        )
    accuracy = reply.parameters.get("accuracy", 0.0)
    if type(accuracy) not in (int, float) or not 0.0 <= accuracy <= 1.0:
        raise InputError(f"the answer has an accuracy of {accuracy!r:.40}; expected a fraction, 0 to 1.")
    n_bytes = 0
    for output in reply.outputs:
        wanted, size = asked[output.name], output.parameters.get("binary_data_size")
        if output.datatype != DATATYPES[wanted.port.dtype] or wanted.is_binary != isinstance(size, int):
            raise InputError(f"{output.name!r} has another datatype or form than requested.")
        _check_answered(output, wanted.port, size)
        n_bytes += size or 0
        if size is None and not is_plain(output.data, wanted.port.dtype, output.shape):
            data = output.data
            if "float" in wanted.port.dtype and isinstance(data, list):
                data = [0.0 if number is None else number for number in data]  # NaN and infinities
            read_json(wanted.port.dtype, tuple(output.shape), msgspec.Raw(_ENCODER.encode(data)))
    if n_bytes != len(tail):
        raise InputError(f"the answer's tensors are {len(tail)} bytes, not {n_bytes}.")
    return float(accuracy) if "accuracy" in reply.parameters else None


def _check_answered(output: _ReplyOutput, port: Port, size: int | None) -> None:
    """Raise InputError if the shape is not the port's, or does not match the number of bytes."""
    dims = [None] * len(output.shape) if port.dims is None else port.dims
    fits = len(output.shape) == len(dims) and all(
        n >= 0 and (not isinstance(dim, int) or dim == n) for n, dim in zip(output.shape, dims, strict=True)
    )
    is_full = (
        size is None or port.dtype == "bytes" or size == prod(output.shape) * numpy_dtype(port.dtype).itemsize
    )
    if not fits or not is_full:
        raise InputError(f"{output.name!r} was answered as {output.shape} in {size} bytes; expected {port}.")
