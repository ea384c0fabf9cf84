"""Convert a call through a deployment handle to an Open Inference Protocol request, and its response back."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pliant.errors import InputError
from pliant.ray.replica_advert import EMPTY_TEXT
from pliant.route.choice.request_terms import Terms
from pliant.run.session.feeds import convert_feed
from pliant.run.session.text_feeds import as_bytes
from pliant.serve.node.infer_call import InferCall, InferResponse
from pliant.serve.protocol.client_messages import read_answer
from pliant.serve.protocol.inference import Signature
from pliant.serve.protocol.oip_tensors import DATATYPES, write_bytes

CallInputs = str | Mapping[str, Any]


def write_call(inputs: CallInputs, terms: Terms, model: Signature) -> InferCall:
    """Encode a text, or feeds by name as a session's `run` takes them, as a binary request.

    Raises InputError for inputs that the model does not have.
    """
    tensors, tail = [], []
    for name, array in _feeds(inputs, model).items():
        port = next(port for port in model.inputs if port.name == name)
        data = write_bytes(array, port.dtype)
        about = {"name": name, "shape": list(array.shape), "datatype": DATATYPES[port.dtype]}
        tensors.append({**about, "parameters": {"binary_data_size": len(data)}})
        tail.append(data)
    parameters = {"deadline_s": terms.deadline_s, "accuracy_floor": terms.accuracy_floor,
                  "best_effort": terms.best_effort}  # fmt: skip
    given = {name: value for name, value in parameters.items() if value is not None}
    head = msgspec.json.encode({"inputs": tensors, "parameters": {**given, "binary_data_output": True}})
    return InferCall(b"".join((head, *tail)), len(head))


def read_call(answered: InferResponse, model: Signature) -> dict[str, Any]:
    """Return the outputs by name and, under `parameters`, the response's parameters."""
    outputs, parameters = read_answer(answered.body, model)
    return {**outputs, "parameters": parameters}


def call_bytes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Estimate the size of a call's inputs as JSON, in bytes; None for a call without inputs.

    A text counts as the body of an HTTP request for it, from which `InputSize` estimates its length.
    """
    inputs = args[0] if args else kwargs.get("inputs")
    if isinstance(inputs, str):
        return len(EMPTY_TEXT) + len(msgspec.json.encode(inputs)) - len('""')
    if not isinstance(inputs, Mapping):
        return None
    return sum(len(msgspec.json.encode(np.asarray(value).tolist())) for value in inputs.values())


def _feeds(inputs: CallInputs, model: Signature) -> dict[str, "np.ndarray[Any, Any]"]:
    if isinstance(inputs, str):
        return {"text": as_bytes(inputs)}
    ports = {port.name: port for port in model.inputs}
    if unknown := sorted(inputs.keys() - ports.keys()):
        raise InputError(f"{model.name} has no input {', '.join(unknown)}: it reads {', '.join(ports)}.")
    return {name: convert_feed(ports[name], value) for name, value in inputs.items()}
