"""A request in progress at a node, and its answer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pliant.errors import NodeError
from pliant.ir.reply import Reply
from pliant.route.choice.choose_endpoint import Choice
from pliant.route.choice.objective import TIME, Objective
from pliant.route.curve_advert import Trail
from pliant.route.node_messages import NodeTime, RouteMessage
from pliant.serve.protocol.inference import InferBody, InferRequest
from pliant.serve.protocol.pending_request import PendingRequest


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request in progress. `body` builds the request body for upstreams; `objective` is what is minimised.

    `route` is the message of the node that forwarded it, if any.
    """

    request: InferRequest
    pending: PendingRequest
    trail: Trail
    id: str
    body: Callable[[], InferBody]
    route: RouteMessage | None = None
    objective: Objective = TIME

    @property
    def is_source(self) -> bool:
        """Whether the request starts here: joules count only at the source (CRIME 4.4)."""
        return self.route is None or not self.route.path


@dataclass(frozen=True, slots=True)
class RoutedAnswer:
    """An answer: a session's reply, or the body from an upstream; `target` is the endpoint that gave it.

    `node` is the node that computed it, any number of hops away. `spent` is waiting and work, or the time at
    the upstream, without the time to read the request, which the caller counts as transfer. `parameters` are
    further response parameters. `choice` is the routing choice. `energy_j` are the joules on this device,
    None if not counted; `accuracy` is the expected accuracy, if it was measured.
    """

    content: Reply[Any] | InferBody
    target: str
    node: str
    spent: NodeTime
    parameters: dict[str, object]
    choice: Choice
    energy_j: float | None = None
    accuracy: float | None = None


@dataclass(slots=True)
class Tries:
    """The endpoints that failed a request so far; those in `blaming` blamed the input."""

    failed: tuple[str, ...] = ()
    blaming: list[str] = field(default_factory=list)
    refusals: dict[str, NodeError] = field(default_factory=dict)  # of endpoints of this device
