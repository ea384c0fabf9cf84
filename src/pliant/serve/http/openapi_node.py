"""Paths in the OpenAPI document of every node, whatever its models: statistics, embeddings, the page."""

from typing import Any, Final

from pliant.serve.http.openapi_repository import ERROR, get_path, json_answer, object_schema
from pliant.serve.page.page_files import page_files

_Json = dict[str, Any]
COUNT: Final[_Json] = {"type": "integer", "minimum": 0}
_DURATION: Final[_Json] = object_schema({"count": COUNT, "ns": COUNT})
_DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
_MOST_INPUTS, _LARGEST_TOKEN = 2048, 2**31 - 1

NODE_SCHEMAS: Final[_Json] = {
    "ModelStatistics": object_schema(
        {"model_stats": {"type": "array", "items": {"$ref": "#/components/schemas/Statistics"}}}
    ),
    "Statistics": object_schema(
        {
            "name": {"type": "string"},
            "version": {"type": "string"},
            **dict.fromkeys(("last_inference", "inference_count", "execution_count"), COUNT),
            "inference_stats": object_schema(dict.fromkeys(_DURATIONS, _DURATION)),
            "batch_stats": {
                "type": "array",
                "items": object_schema({"batch_size": COUNT, "compute_infer": _DURATION}),
            },
        }
    ),
    "Embeddings": object_schema(
        {
            "object": {"const": "list"},
            "model": {"type": "string"},
            "data": {"type": "array", "items": {"$ref": "#/components/schemas/Embedding"}},
            "usage": object_schema({"prompt_tokens": COUNT, "total_tokens": COUNT}),
        }
    ),
    "Embedding": object_schema(
        {
            "object": {"const": "embedding"},
            "index": COUNT,
            "embedding": {
                "oneOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}],
                "description": "Numbers, or their float32 bytes in base64.",
            },
        }
    ),
}


def node_paths() -> _Json:
    """Paths that need no loaded model."""
    answer = {
        "summary": "The timeline of an answer that the page showed.",
        "parameters": [_query("number", {"type": "integer", "minimum": 1}, True), *model_parameters()],
        "responses": {**json_answer("Any"), "404": ERROR},
    }
    outlook = {
        "summary": "Expected times and choices by input length.",
        "parameters": [*terms_parameters(), *model_parameters()],
        "responses": {**json_answer("Any"), "400": ERROR, "404": ERROR},
    }
    events = {**_content("text/event-stream"), "503": ERROR}
    return {
        "/v2/models/stats": get_path("Statistics of all loaded models.", json_answer("ModelStatistics")),
        "/v2/pliant/events": get_path("The events that the page shows, without end.", events),
        "/v2/pliant/answer": {"get": answer},
        "/v2/pliant/outlook": {"get": outlook},
        "/": get_path("The page, for a browser.", _file("text/html"), is_open=True),
        "/page/{name}": _page_file(),
        "/openapi.json": get_path("This document.", json_answer("Any")),
    }


def embeddings_path(model: str | None, terms: _Json) -> _Json:
    """OpenAI's request form for `model` (None: any) with `terms`; 404 for a model without vectors."""
    text = {"type": "string"}
    tokens = _list_of({"type": "integer", "minimum": 0, "maximum": _LARGEST_TOKEN})
    schema = {
        "type": "object",
        "required": ["model", "input"],
        "properties": {
            "model": {"type": "string"} if model is None else {"const": model},
            "input": {
                "oneOf": [text, _list_of(text, _MOST_INPUTS), tokens, _list_of(tokens, _MOST_INPUTS)],
                "description": "Texts or tokens, one or several; 400 for what the model does not read.",
            },
            "encoding_format": {"enum": ["float", "base64"]},
            **{name: {"oneOf": [value, {"type": "null"}]} for name, value in terms.items()},
        },
        "description": "`dimensions` must be the model's own width, if it is given.",
    }
    no = {
        "description": "An error, with the reason.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
    operation = {
        "summary": "Embeddings of texts or tokens, in OpenAI's form.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            **json_answer("Embeddings"),
            **{str(s): no for s in (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503)},
        },
    }
    return {"post": operation}


def terms_parameters() -> list[_Json]:
    """The query parameters of deadline (seconds) and accuracy floor (a fraction)."""
    seconds = {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6}
    fraction = {"type": "number", "minimum": 0, "maximum": 1}
    return [_query("deadline_s", seconds), _query("accuracy_floor", fraction)]


def model_parameters() -> list[_Json]:
    """The query parameters that name a model."""
    return [_query(name, {"type": "string"}) for name in ("model", "version")]


def _query(name: str, schema: _Json, is_required: bool = False) -> _Json:
    more = {"required": True} if is_required else {}
    return {"name": name, "in": "query", "schema": schema, **more}


def _page_file() -> _Json:
    files = page_files()
    name = {"name": "name", "in": "path", "required": True, "schema": {"enum": sorted(files)}}
    types = sorted({file.media_type.partition(";")[0] for file in files.values()})
    found = get_path("A file of the page.", {**_file(*types), "404": ERROR}, is_open=True)
    return {**found, "parameters": [name]}


def _file(*types: str) -> _Json:
    return {**_content(*types), "304": {"description": "Unchanged since the ETag in If-None-Match."}}


def _content(*types: str) -> _Json:
    content = {one: {"schema": {"type": "string"}} for one in types}
    return {"200": {"description": "Success.", "content": content}}


def _list_of(item: _Json, most: int | None = None) -> _Json:
    return {"type": "array", "items": item, "minItems": 1, **({} if most is None else {"maxItems": most})}
