"""What a call through a deployment handle is worth to a router."""

import json

import pytest

import pliant

pytest.importorskip("ray", reason="ray is not installed: pip install 'pliant[ray]'")
from pliant.ray.handle_call import call_bytes
from pliant.ray.replica_advert import input_size


@pytest.mark.parametrize("text", ["good", 'A "moving" film,\nif a long one. ' * 5, "ein sch\u00f6ner Film"])
def test_a_text_is_as_long_as_by_http(text: str) -> None:
    """A call was taken to be the envelope's bytes shorter, about 16 tokens, and short texts to be empty."""
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    body = json.dumps({"inputs": [tensor]}, ensure_ascii=False, separators=(",", ":")).encode()
    with pliant.open("sst2") as session:
        size = input_size(session)
    for args, kwargs in (((text,), {}), ((), {"inputs": text})):
        n_bytes = call_bytes(args, kwargs)
        assert n_bytes is not None
        assert size.length(n_bytes) == size.length(len(body))
