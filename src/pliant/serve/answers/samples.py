"""Samples of a session's inputs, by which a node learns times and power before anybody asks."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pliant.errors import InputError
from pliant.ir.endpoint import Request
from pliant.run.session.session import Session


def sample_requests(served: Session[Any], lengths: Iterable[int]) -> list[Request]:
    """A request of each length that the model can take, or of its longest where it takes none of them."""
    found = []
    for n in lengths:
        if n <= served.max_length:
            with suppress(InputError):
                found.append(served.request(served.sample(n)))
    return found or [served.request(served.sample(served.max_length))]
