"""The model repository in the OpenAPI document, and definitions shared by all parts of that document."""

from typing import Any, Final

_Json = dict[str, Any]
ERROR: Final[_Json] = {
    "description": "An error, with the reason.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}


def json_answer(schema: str) -> _Json:
    """A 200 response with a schema of this document."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"200": {"description": "Success.", "content": content}}


def get_path(summary: str, responses: _Json, is_open: bool = False) -> _Json:
    """A path that is read by GET; with `is_open` it needs no token."""
    operation: _Json = {"summary": summary, "responses": responses}
    return {"get": {**operation, "security": []} if is_open else operation}


def object_schema(properties: _Json) -> _Json:
    """An object schema in which all `properties` are required."""
    return {"type": "object", "required": list(properties), "properties": properties}


REPOSITORY_SCHEMAS: Final[_Json] = {
    "RepositoryIndex": {
        "type": "array",
        "items": object_schema(
            {
                "name": {"type": "string"},
                "version": {"type": "string"},
                "state": {"enum": ["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]},
                "reason": {"type": "string", "description": "Why the model is not ready."},
            }
        ),
    },
    "ModelChange": {
        "type": "object",
        "properties": {
            "parameters": {
                "type": "object",
                "properties": {
                    "version": {"type": "string", "description": "One version; by default all of them."},
                    "unload_dependents": {"type": "boolean", "description": "Ignored."},
                },
                "additionalProperties": False,
            }
        },
        "additionalProperties": False,
    },
    "Loaded": object_schema({"name": {"type": "string"}, "load": {"const": True}}),
    "Unloaded": object_schema({"name": {"type": "string"}, "unload": {"const": True}}),
}


def repository_paths() -> _Json:
    """Paths for operators: list, load and unload models."""
    asked = {
        "type": "object",
        "properties": {"ready": {"type": "boolean", "description": "List only loaded models."}},
        "additionalProperties": False,
    }
    name = {
        "name": "model",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"},
    }
    paths: _Json = {
        "/v2/repository/index": _change("List all models that this node knows.", asked, "RepositoryIndex", ())
    }
    for verb, schema, why in (
        ("load", "Loaded", "Load a model, or reload it if its files have changed."),
        ("unload", "Unloaded", "Unload a model after its pending requests."),
    ):
        change = {"$ref": "#/components/schemas/ModelChange"}
        found = _change(why, change, schema, (404, 409))
        paths[f"/v2/repository/models/{{model}}/{verb}"] = {**found, "parameters": [name]}
    return paths


def _change(summary: str, body: _Json, schema: str, more: tuple[int, ...]) -> _Json:
    no = {str(status): ERROR for status in (400, 401, 403, 408, 413, 415, *more, 503)}
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": False, "content": {"application/json": {"schema": body}}},
            "responses": {**json_answer(schema), **no},
        }
    }
