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
from pliant.serve.answers.work_item import WorkStart
from pliant.serve.protocol.inference import InferBody, InferRequest
from pliant.serve.protocol.pending_request import PendingRequest


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request in progress. `body` builds the request body for upstreams.

    `route` is the message of the node that forwarded it, if any. `objective` is minimised; `own_objective` is
    the one that the request itself names, if any, which upstreams get too. With `shows_endpoints`, the
    response explains all endpoints.
    """

    request: InferRequest
    pending: PendingRequest
    trail: Trail
    id: str
    body: Callable[[], InferBody]
    route: RouteMessage | None = None
    objective: Objective = TIME
    own_objective: Objective | None = None
    shows_endpoints: bool = False

    @property
    def is_source(self) -> bool:
        """Whether the request starts here: joules count only at the source (CRIME 4.4)."""
        return self.route is None or not self.route.path


@dataclass(frozen=True, slots=True)
class UnusedWork:
    """Expected seconds and joules of work here whose answer is not used; None if joules do not count."""

    seconds: float
    joules: float | None


@dataclass(frozen=True, slots=True)
class RoutedAnswer:
    """An answer: a session's reply, or the body from an upstream; `target` is the endpoint that gave it.

    `node` is the node that computed it, any number of hops away. `spent` is waiting and work, or the time at
    the upstream, without the time to read the request, which the caller counts as transfer. `choice` is the
    routing choice. `energy_j` are the joules on this device, None if not counted; `accuracy` is the expected
    accuracy, if it was measured. With `is_hedged`, a second endpoint got the request too, or it moved there;
    `unused` is then the work here for an answer that is not this one. `share_s` are the seconds of this
    device's work for it, its share of a batch; 0 at an upstream.
    """

    content: Reply[Any] | InferBody
    target: str
    node: str
    spent: NodeTime
    choice: Choice
    energy_j: float | None = None
    accuracy: float | None = None
    is_hedged: bool = False
    unused: UnusedWork | None = None
    share_s: float = 0.0

    @property
    def endpoint(self) -> str:
        """`LOCAL`, `CLUSTER`, or the name of the node that computed the answer."""
        return self.node if isinstance(self.content, InferBody) else self.target


@dataclass(slots=True)
class Tries:
    """The endpoints that failed a request so far; those in `blaming` blamed the input.

    `is_hedged` is set when a second endpoint gets the request while the first one has it. `here` are the
    choices of endpoints of this device that have the request, with the start of their work.
    """

    failed: tuple[str, ...] = ()
    blaming: list[str] = field(default_factory=list)
    refusals: dict[str, NodeError] = field(default_factory=dict)  # of endpoints of this device
    is_hedged: bool = False
    here: dict[str, tuple[Choice, WorkStart]] = field(default_factory=dict)

    def unused_work(self, answered: str, n: int, now_s: float) -> UnusedWork:
        """The work here for an input of length n that is in progress while `answered` has answered it."""
        begun = [
            (choice, now_s - start.begun_s)
            for target, (choice, start) in self.here.items()
            if target != answered and start.begun_s is not None
        ]
        seconds = sum((max(choice.option.level.curve.at(n), past_s) for choice, past_s in begun), 0.0)
        return UnusedWork(seconds, sum(choice.energy_j for choice, _ in begun) or None)
