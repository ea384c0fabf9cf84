"""Requests with several inputs: read, divided, and their answers joined."""

import json
from typing import Any

import numpy as np
import pytest

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.route.choice.request_terms import Terms
from pliant.serve.http.limits import Limits
from pliant.serve.protocol.inference import InferRequest, Signature, read_request
from pliant.serve.protocol.replies import answer_of, write_reply
from pliant.serve.protocol.row_requests import join_replies, write_row
from tests.serve.models import texts

MODEL = Signature(
    "m",
    "test",
    (Port("text", "bytes", (1,)), Port("ids", "int64", (1, None))),
    (Port("vector", "float32", (1, 2)), Port("label", "bytes", (1,))),
    (frozenset({"text"}), frozenset({"ids"})),
)


def read(name: str, datatype: str, shape: list[int], data: Any, model: Signature = MODEL) -> InferRequest:
    tensor = {"name": name, "datatype": datatype, "shape": shape, "data": data}
    body = json.dumps({"id": "7", "inputs": [tensor]}).encode()
    return read_request(body, None, model, Limits(n_rows=4), max_length=3)


def test_rows_are_read_as_they_would_be_alone() -> None:
    """Texts, and arrays of which each row has the length that counts."""
    request = read("text", "BYTES", [3], ["a", "b", "c"])
    assert request.n_rows == 3
    for row, word in enumerate((b"a", b"b", b"c")):
        body = write_row(request, row, MODEL, Terms(0.5, None, True))
        alone = read_request(body.content, body.header_bytes, MODEL)
        assert (alone.id, alone.n_rows, alone.tensors["text"].tolist()) == ("7", 1, [word])
        assert alone.terms == Terms(0.5, None, True)
        assert all(wanted.is_binary for wanted in alone.outputs)
    ids = read("ids", "INT64", [4, 3], list(range(12)))
    body = write_row(ids, 2, MODEL, Terms())
    assert read_request(body.content, body.header_bytes, MODEL).tensors["ids"].tolist() == [[6, 7, 8]]


@pytest.mark.parametrize(
    ("name", "datatype", "shape", "data", "why"),
    [
        ("text", "BYTES", [5], ["a"] * 5, "at most 4 rows"),
        ("text", "BYTES", [0], [], "at most 4 rows"),
        ("text", "BYTES", [], ["a"], r"BYTES\[-1\]"),
        ("text", "BYTES", [2, 1], ["a", "b"], r"BYTES\[-1\]"),
        ("text", "BYTES", [2], ["a"], "2 elements"),
        ("ids", "INT64", [2, 4], [0] * 8, "length 4"),
    ],
)
def test_batches_that_cannot_be_are_refused(
    name: str, datatype: str, shape: list[int], data: Any, why: str
) -> None:
    """More rows than are read at once, none, and rows longer than one may be."""
    with pytest.raises(InputError, match=why):
        read(name, datatype, shape, data)


def test_tensors_bring_as_many_rows_each() -> None:
    """Which row belongs to which would be a guess."""
    both = Signature("m", "test", MODEL.inputs, MODEL.outputs, (frozenset({"text", "ids"}),))
    inputs = [
        {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]},
        {"name": "ids", "datatype": "INT64", "shape": [3, 1], "data": [1, 2, 3]},
    ]
    with pytest.raises(InputError, match=r"\[2, 3\] rows"):
        read_request(json.dumps({"inputs": inputs}).encode(), None, both)


def test_a_model_whose_first_dimension_is_its_own_reads_no_batches() -> None:
    """An open first dimension is the model's, and an output without one cannot be divided by rows."""
    for ports in (((None, 2), (1, 2)), ((1, 2), ()), ((1, 2), None)):
        model = Signature(
            "m",
            "test",
            (Port("x", "int64", ports[0]),),
            (Port("y", "int64", ports[1]),),
            (frozenset({"x"}),),
        )
        assert not model.is_batchable
        assert read("x", "INT64", [1, 2], [0, 1], model).n_rows == 1


def test_answers_are_joined_in_their_order() -> None:
    """Arrays one below the other; of what is said the part that holds for all."""
    request = read("text", "BYTES", [2], ["a", "b"])
    said = ({"accuracy": 0.9, "met": True, "cut": "trained"}, {"accuracy": 0.8, "met": False, "cut": "none"})
    answers = []
    for row in range(2):
        asked = write_row(request, row, MODEL, Terms())
        alone = read_request(asked.content, asked.header_bytes, MODEL)
        outputs = {"vector": np.full((1, 2), row, np.float32), "label": texts(f"l{row}")}
        answers.append(write_reply(alone, outputs, MODEL, said[row]))
    reply, _ = answer_of(join_replies(request, answers, MODEL))
    assert [(o.name, o.shape, o.data) for o in reply.outputs] == [
        ("vector", [2, 2], [0.0, 0.0, 1.0, 1.0]),
        ("label", [2], ["l0", "l1"]),
    ]
    assert (reply.id, reply.parameters) == ("7", {"accuracy": 0.8, "met": False, "cut": "trained"})
