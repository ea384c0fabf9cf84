"""The deadline of a request before its model is loaded."""

import json
import tracemalloc

import pytest

from pliant.route.choice.request_terms import NO_TERMS, Terms
from pliant.serve.http.limits import Limits
from pliant.serve.protocol.early_terms import early_terms

N = 500_000


def test_a_deadline_is_read_from_the_parameters() -> None:
    """Of a body with binary data, in its head."""
    head = json.dumps({"inputs": [], "parameters": {"deadline_s": 5.0, "best_effort": True}}).encode()
    for body, n_json in ((head, None), (head + b"\xff" * 9, str(len(head)))):
        assert early_terms(body, n_json, None, Limits()) == Terms(5.0, best_effort=True)
    assert early_terms(b"{}", None, None, Limits()) == Terms()


@pytest.mark.parametrize("part", ["[]", "{}", '""'])
def test_long_parameters_are_not_decoded(part: str) -> None:
    """16 MB of them stopped the node's event loop for a second; they are refused where they are read."""
    body = f'{{"parameters":{{"deadline_s":5.0,"a":[{",".join([part] * N)}]}}}}'.encode()
    tracemalloc.start()
    try:
        assert early_terms(body, None, None, Limits()) == NO_TERMS
        assert tracemalloc.get_traced_memory()[1] < 1.5 * len(body) + 50_000
    finally:
        tracemalloc.stop()
