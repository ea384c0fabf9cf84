"""Write requests to other nodes and read their responses (Open Inference Protocol v2, binary tensors)."""

from collections.abc import Mapping
from dataclasses import asdict, replace

import msgspec
import numpy as np

from pliant.route.choice.request_terms import NO_TERMS, Terms
from pliant.run.session.text_session import TEXT
from pliant.serve.protocol.inference import InferBody, InferRequest, Signature
from pliant.serve.protocol.oip_tensors import DATATYPES, read_bytes, write_bytes
from pliant.serve.protocol.replies import answer_of

_ENCODER = msgspec.json.Encoder()


def write_request(request: InferRequest, model: Signature, terms: Terms = NO_TERMS) -> InferBody:
    """Encode `request`, with binary tensors in the request and the response.

    Between nodes, deadline and floor are sent in a header, because they change on the way. Otherwise pass
    them as `terms`.
    """
    ports = {port.name: port for port in model.inputs}
    inputs, tail = [], []
    for name, array in request.tensors.items():
        data = write_bytes(array, ports[name].dtype)
        about = {"name": name, "shape": list(array.shape), "datatype": DATATYPES[ports[name].dtype]}
        inputs.append({**about, "parameters": {"binary_data_size": len(data)}})
        tail.append(data)
    outputs = [
        {"name": wanted.port.name, "parameters": {"binary_data": wanted.is_binary}}
        for wanted in request.outputs
    ]
    said = {name: value for name, value in asdict(terms).items() if value is not None}
    if request.objective is not None:
        said["objective"] = request.objective
    if request.explains:
        said["explain"] = True
    more = {"parameters": said} if said else {}
    head = _ENCODER.encode({"id": request.id, "inputs": inputs, "outputs": outputs, **more})
    return InferBody(b"".join((head, *tail)), len(head))


def forwarded_body(
    received: InferBody, request: InferRequest, arrays: Mapping[str, np.ndarray], model: Signature
) -> InferBody:
    """The body for an upstream: as it was received, or `arrays` for a text that this node has tokenized.

    The upstream may have no tokenizer.
    """
    if not model.is_tokenized or TEXT.name not in request.tensors:
        return received
    return write_request(replace(request, tensors=arrays), model)


def read_answer(body: InferBody, model: Signature) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Return the output arrays by name and the parameters of a checked response with binary tensors."""
    reply, tail = answer_of(body)
    outputs = {}
    for output in reply.outputs:
        size = output.parameters["binary_data_size"]
        port = next(port for port in model.outputs if port.name == output.name)
        outputs[output.name] = read_bytes(port.dtype, tuple(output.shape), tail[:size])
        tail = tail[size:]
    return outputs, dict(reply.parameters)
