"""Requests of the Open Inference Protocol, with the binary tensor extension.

https://github.com/kserve/open-inference-protocol and Triton's extension_binary_data.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import structs

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.models.onnx.onnx_text import IDS
from pliant.route.choice.request_terms import Terms
from pliant.serve.http.limits import Limits
from pliant.serve.protocol.oip_tensors import DATATYPES, DTYPES, read_bytes, read_json
from pliant.serve.protocol.pending_request import read_terms
from pliant.serve.protocol.signature import Signature as Signature
from pliant.serve.protocol.signature import open_shape as open_shape
from pliant.serve.protocol.signature import signature as signature

T = TypeVar("T")
HEADER_LENGTH = "inference-header-content-length"
"""HTTP header: the number of JSON bytes of a body, if binary tensors follow."""
JSON, BINARY = "application/json", "application/octet-stream"
_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
_NOTHING, _NO_PARAMETERS, _NO_OUTPUTS = msgspec.Raw(b""), msgspec.Raw(b"{}"), msgspec.Raw(b"[]")
NO_TOKENIZER = (
    "It reads no texts: send lists of tokens, or serve it with the tokenizer.json and config.json of the "
    "model beside its file."
)
_UNSUPPORTED = ("shared_memory_region", "classification")


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """A requested output and its form."""

    port: Port
    is_binary: bool


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request that was checked against its model.

    `objective` is the text of its own objective, None for the usual one. With `explains`, the response gives
    the reason for the choice and the estimates of all endpoints.
    """

    id: str
    tensors: Mapping[str, np.ndarray]
    outputs: tuple[RequestedOutput, ...]
    terms: Terms
    n_rows: int = 1
    objective: str | None = None
    explains: bool = False


@dataclass(frozen=True, slots=True)
class InferBody:
    """The bytes of a request or response; the first `header_bytes` are JSON if binary tensors follow."""

    content: bytes
    header_bytes: int | None


class _Input(msgspec.Struct, frozen=True):
    name: str
    shape: msgspec.Raw
    datatype: str
    parameters: msgspec.Raw = _NO_PARAMETERS
    data: msgspec.Raw = _NOTHING


class _Output(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct, frozen=True):
    inputs: msgspec.Raw
    id: str = ""
    parameters: msgspec.Raw = _NO_PARAMETERS
    outputs: msgspec.Raw = _NO_OUTPUTS


@dataclass(frozen=True, slots=True)
class _RawInput:
    """An input as received: everything but `data` is decoded."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: Mapping[str, Any]
    data: msgspec.Raw


_REQUEST = msgspec.json.Decoder(_Request)
_SHAPE = msgspec.json.Decoder(list[_Size])
_PARAMETERS = msgspec.json.Decoder(dict[str, Any])
_OUTPUTS = msgspec.json.Decoder(list[_Output])


def header_bytes(text: str | None) -> int | None:
    """Parse HEADER_LENGTH; None without it. Raises InputError."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise InputError(f"{HEADER_LENGTH} is {text[:40]!r}; give the number of bytes of the JSON part.")
    return int(text)


def read_request(
    body: bytes,
    n_json: int | None,
    model: Signature,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    max_length: int | None = None,
    is_source: bool = True,
) -> InferRequest:
    """Read a request to `model` from `body`, whose first `n_json` bytes (all if None) are JSON.

    The open dimensions of each input multiply to at most `max_length`. A request that another node forwarded
    (not `is_source`) has its objective in `Pliant-Route`, and is explained by the node where it started.
    Raises InputError for anything that the model does not accept; long parts are refused before they are
    decoded, since decoding blocks the event loop.
    """
    head, tail = split_body(body, n_json)
    try:
        request = _REQUEST.decode(head)
        inputs = _inputs(request.inputs, limits)
        parameters = _decode_part(request.parameters, "parameters", _PARAMETERS, limits)
        outputs = _decode_part(request.outputs, "outputs", _OUTPUTS, limits)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the request is not a valid inference request in JSON: {error}.") from error
    _check_names(inputs, model)
    ports = {port.name: port for port in model.inputs}
    tensors: dict[str, np.ndarray] = {}
    n_decoded = 0
    for given in inputs:
        payload, tail = _payload(given, tail)
        _check_shape(ports[given.name], given, model, limits, max_length)
        if payload is None or given.datatype == "BYTES":  # these are decoded one element at a time
            n_decoded += prod(given.shape)
            _check_elements(given, n_decoded, limits)
        tensors[given.name] = _tensor(ports[given.name], given, payload)
    if len(tail):
        raise InputError(f"{len(tail)} bytes follow the last binary tensor; give their `binary_data_size`.")
    wanted, terms = _requested_outputs(outputs, parameters, model), read_terms(parameters)
    n_rows = _n_rows(inputs, model)
    if not is_source:
        return InferRequest(request.id, tensors, wanted, terms, n_rows)
    objective = str(parameters["objective"]) if "objective" in parameters else None
    explains = _read_flag(parameters, "explain")
    return InferRequest(request.id, tensors, wanted, terms, n_rows, objective, explains)


def split_body(body: bytes, n_bytes: int | None) -> tuple[bytes, memoryview]:
    """Return the JSON part, of `n_bytes` (all if None), and the binary tensors. Raises InputError."""
    if n_bytes is None:
        return body, memoryview(b"")
    if not 0 < n_bytes <= len(body):
        raise InputError(f"{HEADER_LENGTH} is {n_bytes}, but the body has {len(body)} bytes.")
    return body[:n_bytes], memoryview(body)[n_bytes:]


def _inputs(given: msgspec.Raw, limits: Limits) -> list[_RawInput]:
    """Decode the inputs. Raises InputError for too many, and msgspec's errors."""
    read = structs.astuple(msgspec.json.decode(given, type=_array_of_inputs(limits.n_tensors)))
    return [_read_input(tensor, limits) for tensor in read if tensor is not msgspec.UNSET]


def _read_input(tensor: _Input, limits: Limits) -> _RawInput:
    shape = _decode_part(tensor.shape, "shape", _SHAPE, limits)
    parameters = _decode_part(tensor.parameters, "parameters", _PARAMETERS, limits)
    return _RawInput(tensor.name, tuple(shape), tensor.datatype, parameters, tensor.data)


@cache
def _array_of_inputs(most: int) -> type[msgspec.Struct]:
    """An array type whose decoding stops after `most` inputs; a list would be decoded to its end."""
    fields = [(f"input_{i}", _Input | msgspec.UnsetType, msgspec.UNSET) for i in range(most)]
    return msgspec.defstruct("Inputs", fields, array_like=True, forbid_unknown_fields=True)


def _decode_part(given: msgspec.Raw, name: str, decoder: msgspec.json.Decoder[T], limits: Limits) -> T:
    """Decode the part called `name`. Raises InputError if it is invalid or too long."""
    n_bytes = memoryview(given).nbytes
    if n_bytes > limits.head_bytes:
        raise InputError(f"`{name}` has {n_bytes} bytes; at most {limits.head_bytes} are read. Shorten it.")
    try:
        return decoder.decode(given)
    except msgspec.DecodeError as error:
        if decoder is _SHAPE:
            shown = bytes(given)[:40].decode(errors="replace")
            raise InputError(f"`shape` is {shown}; give a list of whole numbers, 0 or more.") from error
        raise InputError(f"`{name}` cannot be read: {error}.") from error


def _check_names(given: list[_RawInput], model: Signature) -> None:
    names = [tensor.name for tensor in given]
    if len(set(names)) == len(names) and frozenset(names) in model.alternatives:
        return
    ways = " or ".join(", ".join(sorted(way)) for way in model.alternatives)
    hint = f" {NO_TOKENIZER}" if names == ["text"] and any(port.name == IDS for port in model.inputs) else ""
    raise InputError(f"{model.name} takes {ways}; the request brings {', '.join(names) or 'nothing'}.{hint}")


def _payload(given: _RawInput, tail: memoryview) -> tuple[memoryview | None, memoryview]:
    """Return the tensor's bytes (None if it is JSON) and the remaining bytes."""
    unsupported = [name for name in _UNSUPPORTED if name in given.parameters]
    if unsupported:
        raise InputError(f"{unsupported[0]} is not supported; send {given.name!r} in the request.")
    size = given.parameters.get("binary_data_size")
    if size is None:
        if not bytes(given.data):
            raise InputError(f"{given.name!r} has neither `data` nor a `binary_data_size`.")
        return None, tail
    if type(size) is not int or not 0 <= size <= len(tail):
        raise InputError(f"binary_data_size of {given.name!r} is {size}, but {len(tail)} bytes are left.")
    if bytes(given.data):
        raise InputError(f"{given.name!r} has both `data` and a `binary_data_size`.")
    return tail[:size], tail[size:]


def _n_rows(inputs: list[_RawInput], model: Signature) -> int:
    """The number of rows of a request. Raises InputError if its tensors disagree."""
    found = {given.shape[0] for given in inputs if model.has_rows(given.name)} or {1}
    if len(found) > 1:
        raise InputError(f"the tensors have {sorted(found)} rows; give as many of each.")
    return found.pop()


def _check_shape(port: Port, given: _RawInput, model: Signature, limits: Limits, longest: int | None) -> None:
    shape = given.shape
    if model.has_rows(port.name) and shape and 1 < shape[0] <= limits.n_rows:
        shape = (1, *shape[1:])
    if given.datatype not in DTYPES:
        raise InputError(
            f"{port.name!r} has the unknown datatype {given.datatype!r}; there are {', '.join(DTYPES)}."
        )
    if DTYPES[given.datatype] != port.dtype or len(shape) > limits.n_dims or not _fits(shape, port):
        raise InputError(
            f"{port.name!r} is {given.datatype}{list(given.shape)}, but must be {DATATYPES[port.dtype]}"
            f"{list(model.shown_shape(port))}{_at_most(port, model, limits)}."
        )
    length = prod(n for n, dim in zip(shape, port.dims or (), strict=False) if not isinstance(dim, int))
    if longest is not None and length > longest:
        raise InputError(f"the input has length {length} in {port.name!r}; at most {longest} is read.")


def _at_most(port: Port, model: Signature, limits: Limits) -> str:
    return f" with at most {limits.n_rows} rows" if model.has_rows(port.name) else ""


def _check_elements(given: _RawInput, n_decoded: int, limits: Limits) -> None:
    """Check the number of elements: fixed dimensions do not count as length, but may be large."""
    if n_decoded > limits.n_elements:
        raise InputError(
            f"up to {given.name!r}, {given.datatype}{list(given.shape)}, the inputs have {n_decoded} "
            f"elements as JSON or BYTES; at most {limits.n_elements} are read. Send numbers as binary "
            "tensors (`binary_data_size`), or a smaller batch."
        )


def _tensor(port: Port, given: _RawInput, payload: memoryview | None) -> np.ndarray:
    try:
        if payload is None:
            return read_json(port.dtype, given.shape, given.data)
        return read_bytes(port.dtype, given.shape, payload)
    except InputError as error:
        raise InputError(f"{port.name!r}: {error}") from error


def _fits(shape: tuple[int, ...], port: Port) -> bool:
    if port.dims is None:
        return True
    is_near = len(shape) == len(port.dims)
    return is_near and all(not isinstance(d, int) or d == n for d, n in zip(port.dims, shape, strict=True))


def _requested_outputs(
    outputs: list[_Output], parameters: Mapping[str, Any], model: Signature
) -> tuple[RequestedOutput, ...]:
    is_binary = _read_flag(parameters, "binary_data_output")
    if not outputs:
        return tuple(RequestedOutput(port, is_binary) for port in model.outputs)
    ports = {port.name: port for port in model.outputs}
    found: dict[str, RequestedOutput] = {}
    for asked in outputs:
        unsupported = [name for name in _UNSUPPORTED if name in asked.parameters]
        own = asked.parameters.get("binary_data", is_binary)
        if asked.name not in ports or asked.name in found:
            raise InputError(
                f"output {asked.name!r} is unknown or named twice; {model.name} has {list(ports)}."
            )
        if unsupported or type(own) is not bool:
            raise InputError(f"{asked.name!r} has unsupported parameters: {asked.parameters}.")
        found[asked.name] = RequestedOutput(ports[asked.name], own)
    return tuple(found.values())


def _read_flag(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if type(value) is not bool:
        raise InputError(f"{name} is {value!r:.40}; give true or false.")
    return value
