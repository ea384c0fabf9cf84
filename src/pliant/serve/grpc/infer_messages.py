"""Convert ModelInfer messages to and from REST bodies with binary tensors."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from pliant.errors import InputError
from pliant.serve.grpc.wire_messages import message
from pliant.serve.http.limits import Limits
from pliant.serve.protocol.inference import InferBody
from pliant.serve.protocol.oip_tensors import DTYPES, numpy_dtype, write_bytes
from pliant.serve.protocol.replies import answer_of

_ENCODER = msgspec.json.Encoder()
_RESPONSE = message("ModelInferResponse")
_OUTPUT = message("ModelInferResponse.InferOutputTensor")
_PARAMETER = message("InferParameter")
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The `contents` field of each datatype that is not raw; 16-bit floats have no such field."""
_INT64 = range(-(1 << 63), 1 << 63)


def read_infer(asked: Any, limits: Limits, deadline_s: float | None = None) -> InferBody:
    """Convert a ModelInferRequest to the equivalent REST body, with binary outputs requested.

    `deadline_s`, if given, replaces the request's own. Raises InputError if the contents are neither all raw
    nor all typed, and for elements that do not fit their datatype. Other errors are found when the body is
    read.
    """
    raw = _raw_contents(asked, limits)
    inputs = [
        {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "datatype": tensor.datatype,
            "parameters": {**_plain(tensor.parameters), "binary_data_size": len(data)},
        }
        for tensor, data in zip(asked.inputs, raw, strict=True)
    ]
    parameters = {**_plain(asked.parameters), "binary_data_output": True}
    if deadline_s is not None:
        parameters["deadline_s"] = deadline_s
    outputs = [
        {"name": wanted.name, "parameters": {**_plain(wanted.parameters), "binary_data": True}}
        for wanted in asked.outputs
    ]
    request = {"id": asked.id, "parameters": parameters, "inputs": inputs, "outputs": outputs}
    head = _ENCODER.encode(request)
    return InferBody(b"".join((head, *raw)), len(head))


def write_infer(body: InferBody, version: str) -> Any:
    """Convert a response to a request of `read_infer` to a ModelInferResponse, with raw tensors.

    `version` is the version of the model.
    """
    reply, tail = answer_of(body)
    raw, outputs, at = [], [], 0
    for output in reply.outputs:
        end = at + output.parameters["binary_data_size"]
        raw.append(bytes(tail[at:end]))
        outputs.append(_OUTPUT(name=output.name, datatype=output.datatype, shape=output.shape))
        at = end
    return _RESPONSE(
        model_name=reply.model_name,
        model_version=version,
        id=reply.id,
        parameters=_written(reply.parameters),
        outputs=outputs,
        raw_output_contents=raw,
    )


def _raw_contents(asked: Any, limits: Limits) -> list[bytes]:
    """The bytes of each input."""
    raw = list(asked.raw_input_contents)
    if not raw:
        n_left = limits.n_elements
        for tensor in asked.inputs:
            raw.append(_bytes_of(tensor, n_left))
            n_left -= _n_elements(tensor)
        return raw
    if len(raw) != len(asked.inputs) or any(tensor.HasField("contents") for tensor in asked.inputs):
        raise InputError(
            f"raw_input_contents has {len(raw)} parts for {len(asked.inputs)} inputs; give one for each "
            "input, in their order, and no `contents`."
        )
    return raw


def _n_elements(tensor: Any) -> int:
    return sum(len(elements) for _, elements in tensor.contents.ListFields())


def _bytes_of(tensor: Any, n_most: int) -> bytes:
    """Encode the elements of `contents` in the protocol's binary form. They are read one at a time."""
    field = _CONTENTS.get(tensor.datatype)
    given = [descriptor.name for descriptor, _ in tensor.contents.ListFields()]
    if field is None or given not in ([field], []):
        wanted = "raw_input_contents" if field is None else f"`contents.{field}`, or raw_input_contents"
        raise InputError(
            f"{tensor.name!r} is {tensor.datatype!r:.40} in {', '.join(given) or 'nothing'}; give {wanted}."
        )
    elements = getattr(tensor.contents, field)
    if len(elements) > n_most:
        raise InputError(
            f"{tensor.name!r} has {len(elements)} elements in `contents.{field}`, but at most {n_most} more "
            "are accepted; send them in raw_input_contents."
        )
    dtype = DTYPES[tensor.datatype]
    array = np.empty(len(elements), object) if dtype == "bytes" else None
    if array is not None:
        array[:] = elements
        return write_bytes(array, dtype)
    try:
        return write_bytes(np.array(list(elements), numpy_dtype(dtype)), dtype)
    except OverflowError as error:
        raise InputError(f"{tensor.name!r}: a number does not fit {tensor.datatype}: {error}.") from error


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by name, as JSON values; an unset parameter is null."""
    found = {}
    for name, value in parameters.items():
        choice = value.WhichOneof("parameter_choice")
        found[name] = None if choice is None else getattr(value, choice)
    return found


def _written(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Response parameters; a value of no parameter type becomes a JSON string."""
    return {name: _parameter(value) for name, value in parameters.items()}


def _parameter(value: Any) -> Any:
    match value:
        case bool():
            return _PARAMETER(bool_param=value)
        case int() if value in _INT64:
            return _PARAMETER(int64_param=value)
        case float():
            return _PARAMETER(double_param=value)
        case str():
            return _PARAMETER(string_param=value)
    return _PARAMETER(string_param=_ENCODER.encode(value).decode())
