"""Routing options of a routed session, and the routing details of its replies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pliant.route.choice.choose_endpoint import Option
from pliant.route.choice.energy import PowerModel, RadioModel
from pliant.route.choice.objective import TIME, Objective
from pliant.route.router_settings import RouterSettings
from pliant.serve.access.security import Tls
from pliant.serve.answers.explain_choice import EndpointEstimate
from pliant.serve.answers.routed_request import UnusedWork


@dataclass(frozen=True, slots=True)
class Routing:
    """How a session forwards requests: credentials for upstreams, and the objective.

    `objective` may be text: "time", "energy", or "mix:0.3", which is 0.7 seconds + 0.3 joules.
    `token` is one of the upstreams' peer tokens. Joules of this device count by `power` (a model, watts as
    text, or "measure"), those of cluster workers by their watts, and those of sending by `radio` (or "lte").
    `cluster_radio` and `worker_radio` are the radios by which this device and its cluster's workers exchange
    activations, if not by cable.
    With `discover`, announced nodes (`pliant node --announce`) become upstreams: those that prove the
    `token`, or without a token those of this machine. `settings` replace the default router settings; joules
    then count by theirs.
    """

    token: str | None = field(default=None, repr=False)
    tls: Tls = field(default_factory=Tls)
    name: str | None = None
    objective: Objective | str = TIME
    power: PowerModel | str | None = None
    radio: RadioModel | str | None = None
    worker_power: Mapping[str, str] = field(default_factory=dict)
    cluster_radio: RadioModel | str | None = None
    worker_radio: Mapping[str, RadioModel | str] = field(default_factory=dict)
    discover: bool = False
    settings: RouterSettings | None = None


@dataclass(frozen=True, slots=True)
class RoutedDetails:
    """Why an endpoint answered: the rule, its estimate (`expected`), and those of all endpoints.

    `endpoints` lists them as `explain` does; one that is away, was busy or had failed has a `reason`.
    `node` is the node that computed the answer. `details` are those of the local session that answered, None
    for another node's answer. If `is_hedged`, a second endpoint got the request as well, or it moved there;
    `unused` is then the work of this device for an answer that is not used.
    """

    node: str
    reason: str
    expected: Option
    endpoints: tuple[EndpointEstimate, ...]
    details: Any
    is_hedged: bool = False
    unused: UnusedWork | None = None
