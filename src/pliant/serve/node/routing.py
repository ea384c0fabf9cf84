"""What a routed session is told of routing, and what its replies tell."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pliant.route.choice.choose_endpoint import Option
from pliant.route.choice.energy import PowerModel, RadioModel
from pliant.route.choice.objective import TIME, Objective
from pliant.route.router_settings import RouterSettings
from pliant.serve.http.security import Tls


@dataclass(frozen=True, slots=True)
class Routing:
    """How requests of a session are passed on: what upstreams are shown, and what a choice minimises.

    `token` is one of the upstreams' peer tokens. Joules of this device count by `power` (a model, watts as a
    text, or "measure"), those of its cluster's workers by their watts, and sending by `radio` (or "lte").
    With `discover`, nodes that announce themselves (`pliant node --announce`) become upstreams: those that
    prove the `token`, or without one those of this machine.
    `settings` are the router's, where the usual ones do not serve; joules then count by theirs.
    """

    token: str | None = field(default=None, repr=False)
    tls: Tls = field(default_factory=Tls)
    name: str | None = None
    objective: Objective = TIME
    power: PowerModel | str | None = None
    radio: RadioModel | str | None = None
    worker_power: Mapping[str, str] = field(default_factory=dict)
    discover: bool = False
    settings: RouterSettings | None = None


@dataclass(frozen=True, slots=True)
class RoutedDetails:
    """Why an endpoint answered: the rule, what was expected of it, and of the others, best first.

    `node` is the name of the node that made the answer. `details` are those of the session that answered,
    None where that was another node's.
    """

    node: str
    reason: str
    expected: Option
    others: tuple[Option, ...]
    details: Any
