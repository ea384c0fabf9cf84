"""Metadata of a server and its models in the Open Inference Protocol, the same over REST and gRPC."""

from collections.abc import Sequence
from typing import Any

from pliant.ir.port import Port
from pliant.serve.protocol.inference import Signature
from pliant.serve.protocol.oip_tensors import DATATYPES

EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "statistics",
    "model_repository",
    "pliant_route",
)
_Json = dict[str, Any]


def server_metadata(name: str, version: str) -> _Json:
    """The metadata of a server."""
    return {"name": name, "version": version, "extensions": EXTENSIONS}


def model_metadata(model: Signature, versions: Sequence[str]) -> _Json:
    """The metadata of a model: its tensors, with -1 for open dimensions."""
    return {
        "name": model.name,
        "versions": list(versions),
        "platform": model.platform,
        "inputs": [_tensor(port, model) for port in model.inputs],
        "outputs": [_tensor(port, model) for port in model.outputs],
    }


def model_config(model: Signature, max_length: int, identity: str) -> _Json:
    """A model's configuration in Triton's form.

    Shapes include the first dimension, so `max_batch_size` is 0. An input is optional if some requests do not
    need it.
    """
    optional = {port.name for port in model.inputs if any(port.name not in way for way in model.alternatives)}
    return {
        "name": model.name,
        "platform": model.platform,
        "backend": "pliant",
        "max_batch_size": 0,
        "input": [{**_configured(port, model), "optional": port.name in optional} for port in model.inputs],
        "output": [_configured(port, model) for port in model.outputs],
        "parameters": {
            "max_length": {"string_value": str(max_length)},
            "identity": {"string_value": identity},
        },
    }


def _tensor(port: Port, model: Signature) -> _Json:
    return {"name": port.name, "datatype": DATATYPES[port.dtype], "shape": model.shown_shape(port)}


def _configured(port: Port, model: Signature) -> _Json:
    datatype = DATATYPES[port.dtype]
    data_type = f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}"
    return {"name": port.name, "data_type": data_type, "dims": model.shown_shape(port)}
