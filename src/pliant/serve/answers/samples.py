"""Sample inputs of a session, to measure time and power before the first request."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pliant.errors import InputError
from pliant.ir.endpoint import Request
from pliant.run.session.session import Session


def sample_requests(served: Session[Any], lengths: Iterable[int]) -> list[Request]:
    """A request of each length that the model can take, or of its longest if it can take none of them."""
    found = []
    for n in lengths:
        if n <= served.max_length:
            with suppress(InputError):
                found.append(served.request(served.sample(n)))
    return found or [served.request(served.sample(served.max_length))]
