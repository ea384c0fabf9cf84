"""The OpenAPI document of a node and its model."""

from typing import Any, Final

from pliant.ir.port import Port
from pliant.serve.http.openapi_node import (
    NODE_SCHEMAS,
    embeddings_path,
    model_parameters,
    node_paths,
    terms_parameters,
)
from pliant.serve.http.openapi_repository import (
    ERROR,
    REPOSITORY_SCHEMAS,
    get_path,
    object_schema,
    repository_paths,
)
from pliant.serve.http.openapi_repository import (
    json_answer as _json,
)
from pliant.serve.protocol.inference import Signature, open_shape
from pliant.serve.protocol.oip_tensors import DATATYPES

_Json = dict[str, Any]
_NAME = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"}
_SECONDS = {"type": "number", "minimum": 0, "maximum": 1000000}


_SERVER_SCHEMAS: Final[_Json] = {
    "Any": {"type": "object"},
    "Error": object_schema({"error": {"type": "string"}}),
    "Live": object_schema({"live": {"type": "boolean"}}),
    "Ready": object_schema({"ready": {"type": "boolean"}}),
    "Server": object_schema(
        {
            "name": {"type": "string"},
            "version": {"type": "string"},
            "extensions": {"type": "array", "items": {"type": "string"}},
        }
    ),
}
_ROWS = (1, 2, 3)
"""Numbers of rows in the request schemas: a schema cannot relate the number of elements to the shape."""


def document(
    model: Signature,
    model_version: str,
    max_length: int,
    best: float | None,
    counts_joules: bool,
    version: str,
    has_tokens: bool,
) -> _Json:
    """The OpenAPI 3.1 document of this node, with request bodies in their JSON form.

    `best` is the highest accuracy of the model; None if it was never measured. Objectives of joules need a
    node that `counts_joules`. `version` is that of the node.
    """
    base, terms = f"/v2/models/{model.name}", _terms(best or 0.0)
    paths: _Json = {
        **_model_paths(base),
        **_model_paths(f"{base}/versions/{model_version}"),
        "/v1/embeddings": embeddings_path(model.name, terms),
        "/v2/pliant/curve": get_path("Expected latency of this node by input length.", _json("Any")),
        "/v2/pliant/route": {"get": _explain(max_length, counts_joules)},
        "/v2/pliant/peers": _peers(),
        "/v2/pliant/tell": {"post": _tell()},
    }
    title = f"pliant node: {model.name}"
    schemas = _schemas(model, _parameters(terms, counts_joules))
    return _assemble(title, version, paths, schemas, has_tokens)


def front_document(version: str, has_tokens: bool) -> _Json:
    """The OpenAPI 3.1 document of a node without a loaded model."""
    paths = {"/v1/embeddings": embeddings_path(None, _terms(1.0))}
    return _assemble("pliant node", version, paths, {}, has_tokens)


def _assemble(title: str, version: str, of_model: _Json, schemas: _Json, has_tokens: bool) -> _Json:
    paths: _Json = {
        "/v2/health/live": get_path("Whether the node is running.", _json("Live"), is_open=True),
        "/v2/health/ready": get_path("Whether the node is ready.", _states("Ready"), is_open=True),
        "/v2": get_path("The node and its extensions.", _json("Server")),
        **node_paths(),
        **repository_paths(),
        **of_model,
        "/metrics": get_path(
            "Counters for Prometheus.",
            {"200": {"description": "Text.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
        ),
    }
    for path in paths.values():
        for operation in _operations(path):
            if "security" not in operation:
                operation["responses"] = {"429": ERROR} | operation["responses"]
    components: _Json = {"schemas": {**_SERVER_SCHEMAS, **NODE_SCHEMAS, **REPOSITORY_SCHEMAS, **schemas}}
    about: _Json = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": components,
    }
    if has_tokens:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        about["security"] = [{"token": []}]
        for path in paths.values():
            for operation in _operations(path):
                if "security" not in operation:
                    operation["responses"] = {"401": ERROR, "403": ERROR} | operation["responses"]
    return about


def _model_paths(base: str) -> _Json:
    """The paths of a model below `base`, with or without its version."""
    return {
        base: get_path("The model's inputs and outputs.", _json("Model")),
        f"{base}/ready": get_path("Whether the model is ready.", _states("ModelReady")),
        f"{base}/infer": {"post": _infer()},
        f"{base}/config": get_path("The model's configuration, in Triton's form.", _json("ModelConfig")),
        f"{base}/stats": get_path("Statistics of the model's requests.", _json("ModelStatistics")),
    }


def _operations(path: _Json) -> list[_Json]:
    return [operation for method, operation in path.items() if method != "parameters"]


def _states(schema: str) -> _Json:
    """200 if ready and 503 if not, with the same body schema."""
    ready = _json(schema)
    return {**ready, "503": {**ready["200"], "description": "Not ready."}}


def _explain(max_length: int, counts_joules: bool) -> _Json:
    schema = {"type": "integer", "minimum": 0, "maximum": max_length}
    length = {"name": "length", "in": "query", "required": True, "schema": schema}
    responses = {**_json("Any"), "400": ERROR, "404": ERROR}
    return {
        "summary": "The endpoint that this node would choose, and why.",
        "parameters": [
            length,
            *terms_parameters(),
            {"name": "objective", "in": "query", "schema": _objective(counts_joules)},
            *model_parameters(),
        ],
        "responses": responses,
    }


def _peers() -> _Json:
    urls = {"type": "array", "items": {"type": "string"}}
    changes = {"type": "object", "properties": {"add": urls, "remove": urls}, "additionalProperties": False}
    body = {"required": True, "content": {"application/json": {"schema": changes}}}
    no = {str(status): ERROR for status in (403, 408, 413, 415, 503)}
    return {
        "get": {"summary": "Upstream and downstream nodes.", "responses": {**_json("Any"), "403": ERROR}},
        "post": {
            "summary": "Add or remove upstreams; for operators.",
            "requestBody": body,
            "responses": {**_json("Any"), "400": ERROR, **no},
        },
    }


def _tell() -> _Json:
    body = {"application/json": {"schema": {"$ref": "#/components/schemas/Word"}}}
    no = {str(status): ERROR for status in (400, 404, 408, 413, 415)}
    return {
        "summary": "Notification that another node's curve has changed.",
        "requestBody": {"required": True, "content": body},
        "responses": {**_json("Any"), **no},
    }


def _infer() -> _Json:
    body = {"application/json": {"schema": {"$ref": "#/components/schemas/InferRequest"}}}
    no = {str(status): ERROR for status in (400, 408, 409, 413, 415, 422, 431, 500, 503, 508)}
    yes = _json("InferResponse")
    yes["200"]["content"]["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    return {
        "summary": "Run inference.",
        "requestBody": {"required": True, "content": body},
        "responses": {**yes, **no},
    }


def _schemas(model: Signature, parameters: _Json) -> _Json:
    ports = {port.name: port for port in model.inputs}
    ways = [
        [_input(ports[name], n_rows) for name in sorted(way)]
        for way in model.alternatives
        for n_rows in (_ROWS if all(map(model.has_rows, way)) else _ROWS[:1])
    ]
    return {
        "ModelReady": object_schema({"name": {"const": model.name}, "ready": {"type": "boolean"}}),
        "Model": object_schema(
            {
                "name": {"const": model.name},
                "platform": {"type": "string"},
                "inputs": {"type": "array", "items": {"$ref": "#/components/schemas/Port"}},
                "outputs": {"type": "array", "items": {"$ref": "#/components/schemas/Port"}},
            }
        ),
        "ModelConfig": object_schema(
            {
                "name": {"const": model.name},
                "platform": {"type": "string"},
                "backend": {"type": "string"},
                "max_batch_size": {"type": "integer", "minimum": 0},
                "input": {"type": "array", "items": {"$ref": "#/components/schemas/ConfiguredPort"}},
                "output": {"type": "array", "items": {"$ref": "#/components/schemas/ConfiguredPort"}},
            }
        ),
        "ConfiguredPort": object_schema(
            {
                "name": {"type": "string"},
                "data_type": {"type": "string", "pattern": "^TYPE_"},
                "dims": {"type": "array", "items": {"type": "integer", "minimum": -1}},
            }
        ),
        "Port": object_schema(
            {
                "name": {"type": "string"},
                "datatype": {"enum": sorted(DATATYPES.values())},
                "shape": {"type": "array", "items": {"type": "integer", "minimum": -1}},
            }
        ),
        "InferRequest": {
            "type": "object",
            "required": ["inputs"],
            "properties": {
                "id": {"type": "string"},
                "parameters": parameters,
                "inputs": {"oneOf": [_sequence(way) for way in ways], "description": _described_model(model)},
                "outputs": {
                    "type": "array",
                    "maxItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"enum": [port.name for port in model.outputs]}},
                    },
                },
            },
        },
        "Word": {
            "type": "object",
            "required": ["node", "points", "through"],
            "properties": {
                "node": _NAME,
                "points": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 1,
                    "items": {
                        "type": "array",
                        "prefixItems": [{"enum": [0, 1, 40]}, _SECONDS],
                        "items": False,
                        "minItems": 2,
                        "maxItems": 2,
                    },
                },
                "through": {"type": "array", "items": _NAME, "maxItems": 128},
                "spent_s": _SECONDS,
            },
        },
        "InferResponse": {
            "type": "object",
            "required": ["model_name", "outputs"],
            "properties": {
                "model_name": {"const": model.name},
                "model_version": {"const": model.version},
                "id": {"type": "string"},
                "parameters": _reply_parameters(),
                "outputs": {"type": "array", "items": {"$ref": "#/components/schemas/Tensor"}},
            },
        },
        "Tensor": {
            "type": "object",
            "required": ["name", "datatype", "shape", "data"],
            "properties": {
                "name": {"enum": [port.name for port in model.outputs]},
                "datatype": {"enum": sorted(DATATYPES.values())},
                "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                "data": {"type": "array"},
            },
        },
    }


def _terms(best: float) -> _Json:
    """The terms of a request: deadline and accuracy floor."""
    deadline = {"type": "number", "exclusiveMinimum": 0, "maximum": 1000000}
    floor = {"type": "number", "minimum": 0, "maximum": best}
    late = "Accept the soonest late answer instead of 503."
    return {
        "deadline_s": {**deadline, "description": "Deadline in seconds; 503 if no answer is in time."},
        "best_effort": {"type": "boolean", "description": late},
        "accuracy_floor": {**floor, "description": "Lowest accepted accuracy, a fraction."},
    }


def _parameters(terms: _Json, counts_joules: bool) -> _Json:
    """The parameters of a request: its terms, the objective, and whether to explain the choice."""
    objective = _objective(counts_joules)
    return {
        "type": "object",
        "properties": {
            "binary_data_output": {"type": "boolean"},
            **terms,
            "objective": {**objective, "description": "The cost to minimize: time, energy, or mix:W."},
            "explain": {"type": "boolean", "description": "Add the reason and the endpoints' estimates."},
        },
    }


def _objective(counts_joules: bool) -> _Json:
    by_joules = {"type": "string", "pattern": "^(time|energy|mix:(0|1|0[.][0-9]{1,9}))$"}
    return by_joules if counts_joules else {"enum": ["time"]}


def _reply_parameters() -> _Json:
    """Parameters of a response; `endpoints` is JSON text."""
    return {
        "type": "object",
        "properties": {
            "accuracy": {"type": "number", "minimum": 0, "maximum": 1},
            "cut": {"enum": ["none", "trained", "measured", "untrained"]},
            "met": {"type": "boolean"},
            **{name: {"type": "number", "minimum": 0} for name in ("energy_j", "unused_s", "unused_j")},
            **{name: {"type": "string"} for name in ("endpoint", "reason", "endpoints")},
            "hedged": {"type": "boolean"},
        },
    }


def _sequence(items: list[_Json]) -> _Json:
    n = len(items)
    return {"type": "array", "prefixItems": items, "items": False, "minItems": n, "maxItems": n}


def _described_model(model: Signature) -> str:
    if not model.is_batchable:
        return "One input; open dimensions may have any length that the model supports."
    return (
        "One input, or several in the first dimension of every tensor. Each counts as a separate request, "
        "and the response has as many rows. Open dimensions may have any length that the model supports."
    )


def _input(port: Port, n_rows: int) -> _Json:
    """Schema of `n_rows` of an input as JSON; open dimensions get one of their possible sizes."""
    shape = [1 if d < 0 else d for d in open_shape(port)]
    if n_rows > 1:
        shape[0] = n_rows
    n = 1
    for d in shape:
        n *= d
    return {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"const": port.name},
            "shape": {"const": shape},
            "datatype": {"const": DATATYPES[port.dtype]},
            "data": {"type": "array", "items": _element(port.dtype), "minItems": n, "maxItems": n},
        },
    }


def _element(dtype: str) -> _Json:
    if dtype == "bytes":
        return {"type": "string"}
    if dtype == "bool":
        return {"type": "boolean"}
    if dtype.startswith(("int", "uint")):
        bits = int(dtype.lstrip("uint"))
        low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return {"type": "integer", "minimum": low, "maximum": high}
    most = 60000.0
    return {"type": "number", "minimum": -most, "maximum": most}
