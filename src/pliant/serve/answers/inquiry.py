"""A request under way at a node, and its answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pliant.ir.reply import Reply
from pliant.route.choice.choose_endpoint import Choice
from pliant.route.choice.objective import TIME, Objective
from pliant.route.curve_advert import Trail
from pliant.route.node_messages import RouteMessage, Spent
from pliant.serve.protocol.inference import Body, InferRequest
from pliant.serve.protocol.terms import PendingRequest


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A request under way. `body` makes what an upstream is sent; `objective` says what is least.

    `route` is what a node that passed it on says.
    """

    request: InferRequest
    wish: PendingRequest
    trail: Trail
    id: str
    body: Callable[[], Body]
    route: RouteMessage | None = None
    objective: Objective = TIME

    @property
    def is_source(self) -> bool:
        """Whether it starts here: joules count at the source alone (CRIME 4.4)."""
        return self.route is None or not self.route.path


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: a session's reply, or the body that an upstream sent; `target` is the endpoint that gave it.

    `node` is the name of the node that made it, however many hops away. What was spent is the wait and the
    work, or the time away; not what reading the request took, which whoever asks counts as the way. `said`
    goes into the parameters of the response. `choice` is how the endpoint was chosen. `energy_j` are the
    joules that it took here, None where they are not counted; `accuracy` is what it was given at, where that
    was measured.
    """

    content: Reply[Any] | Body
    target: str
    node: str
    spent: Spent
    said: dict[str, object]
    choice: Choice
    energy_j: float | None = None
    accuracy: float | None = None
