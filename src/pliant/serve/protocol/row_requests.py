"""Split a request with several inputs into requests of one input, and join the responses.

This applies to models whose inputs and outputs all have a fixed first dimension of 1: a request may have n
there, and the response has n too. Each row waits, is routed and is counted as a separate request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pliant.errors import InputError
from pliant.route.choice.request_terms import Terms
from pliant.serve.protocol.client_messages import read_answer, write_request
from pliant.serve.protocol.inference import InferBody, InferRequest, Signature
from pliant.serve.protocol.replies import write_reply

_CUTS = ("none", "trained", "measured", "untrained")
"""Reasons for left-out layers, from the best known accuracy to the least known."""
_EXPLANATION = ("reason", "hedged", "unused_s", "unused_j", "endpoints")
"""Parameters of an explained answer."""


def write_row(request: InferRequest, row: int, model: Signature, terms: Terms) -> InferBody:
    """The request body of one row, with binary outputs and `terms`; only the first row is explained."""
    tensors = {name: array[row : row + 1] for name, array in request.tensors.items()}
    outputs = tuple(replace(wanted, is_binary=True) for wanted in request.outputs)
    explains = request.explains and row == 0
    one = replace(request, tensors=tensors, outputs=outputs, explains=explains)
    return write_request(one, model, terms)


def join_replies(request: InferRequest, answers: Sequence[InferBody], model: Signature) -> InferBody:
    """Join the responses of all rows, in order, into the response of `request`.

    Raises InputError if rows have different shapes, which is possible for a model with another open
    dimension.
    """
    read = [read_answer(body, model) for body in answers]
    outputs = {}
    for wanted in request.outputs:
        name = wanted.port.name
        rows = [found[name] for found, _ in read]
        if len({row.shape for row in rows}) > 1:
            raise InputError(f"the rows' {name!r} have different shapes; ask for one row at a time.")
        outputs[name] = np.concatenate(rows)
    return write_reply(request, outputs, model, _combined_parameters([said for _, said in read]))


def _combined_parameters(every: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combined parameters: the lowest accuracy, whether all were in time, total joules, the worst cut, every
    endpoint, and the explanation of the first row."""
    found: dict[str, Any] = {}
    for name, least in (("accuracy", min), ("met", all), ("energy_j", sum)):
        values = [said[name] for said in every if name in said]
        if len(values) == len(every):
            found[name] = least(values)
    endpoints = [str(said["endpoint"]) for said in every if "endpoint" in said]
    if endpoints:
        found["endpoint"] = ",".join(dict.fromkeys(endpoints))
    cuts = [said["cut"] for said in every if said.get("cut") in _CUTS]
    if cuts:
        found["cut"] = max(cuts, key=_CUTS.index)
    return found | {name: every[0][name] for name in _EXPLANATION if name in every[0]}
