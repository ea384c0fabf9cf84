"""A call of a node by a client or another node, and its response."""

from collections.abc import Callable
from dataclasses import dataclass

from pliant.errors import InputError
from pliant.route.node_messages import NodeTime, RouteMessage
from pliant.serve.protocol.inference import InferBody
from pliant.serve.upstream.upstreams import REQUEST_HEADER

_LONGEST_ID = 64


@dataclass(frozen=True, slots=True)
class InferCall:
    """A request as received from the address `client`.

    `route` and `id` are set if a node forwarded it, or if a client wants idempotency. `waited_s` is its wait
    for the model to be loaded, which counts against its deadline. `may_explain` says whether its caller may
    read the estimates of all endpoints; None: no.
    """

    body: bytes
    header_bytes: int | None = None
    route: RouteMessage | None = None
    id: str | None = None
    client: str = ""
    waited_s: float = 0.0
    may_explain: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        id = self.id
        if id is not None and not (0 < len(id) <= _LONGEST_ID and id.isascii() and id.isprintable()):
            raise InputError(
                f"{REQUEST_HEADER} is {id[:_LONGEST_ID]!a}, of {len(id)} characters; give 1 to {_LONGEST_ID} "
                "of ASCII."
            )


@dataclass(frozen=True, slots=True)
class InferResponse:
    """The response to a call: its body, the endpoint and node that answered, and the time spent.

    `accuracy` is the expected accuracy, if it was measured. `length` is the total length of its rows.
    """

    body: InferBody
    target: str
    node: str
    spent: NodeTime
    length: int
    accuracy: float | None = None
