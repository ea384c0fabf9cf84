"""Controls that change a running node: models, endpoints, limits, credentials; and reloads on SIGHUP."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, final

from pliant.errors import BudgetError, NodeError
from pliant.route.choice.objective import Objective
from pliant.route.choice.request_terms import Terms
from pliant.run.session.session import Session
from pliant.serve.access.access import AccessControl
from pliant.serve.access.credentials import Credentials, CredentialSet
from pliant.serve.access.rates import ClientRates
from pliant.serve.answers.admission import Admission
from pliant.serve.node.peers import configure_upstreams, upstreams_with
from pliant.serve.node.reloads import Reloads
from pliant.serve.repository.live_model import LiveModel
from pliant.serve.repository.model_entry import ModelEntry
from pliant.serve.repository.model_repository import ModelRepository
from pliant.serve.upstream.client import checked_url


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """What can change of a node while it runs.

    `terms` and `objective` are the defaults of requests, `upstreams` those of models that name none. `queue`
    applies to each endpoint, `rates` to each client. `memory_bytes` is the budget of all models; a node has
    one from its start on, or never.
    """

    entries: tuple[ModelEntry, ...]
    terms: Terms
    objective: Objective
    upstreams: tuple[str, ...]
    queue: int
    rates: ClientRates
    memory_bytes: int | None

    def upstreams_of(self, entry: ModelEntry) -> tuple[str, ...]:
        """The configured upstreams of one model."""
        own = entry.endpoints.upstreams
        return tuple(map(checked_url, self.upstreams if own is None else own))


@final
@dataclass(slots=True)
class NodeControls:
    """The controls of one node, on its event loop. `config` also applies to models that are loaded later.

    With `discovers`, upstreams may come at any time.
    """

    repository: ModelRepository
    access: AccessControl
    admission: Admission
    credentials: Credentials
    config: NodeConfig
    discovers: bool = False
    reloads: Reloads = field(default_factory=Reloads)

    async def apply(self, config: NodeConfig, credentials: CredentialSet | None = None) -> None:
        """Change the node to `config`, and to `credentials` if they are given.

        Requests that wait or run stay, even beyond a shorter queue; recent use still counts against the
        rates. The change is atomic: PliantError is raised if a model cannot be loaded or has too little
        memory or too many upstreams, and NodeError if one that answers alone never reaches its accuracy
        floor.
        """
        await self._check_endpoints(config)
        before, self.config = self.config, config
        try:
            await self.repository.configure(config.entries, config.memory_bytes)
        except BaseException:
            self.config = before
            self._apply_endpoints()  # models were loaded again meanwhile
            self._apply_limits()
            raise
        self._apply_endpoints()
        self._apply_limits()
        if credentials is not None:
            self.credentials.use(credentials)

    def _apply_endpoints(self) -> None:
        config, known = self.config, {entry.key: entry for entry in self.config.entries}
        self.repository.use_defaults(config.terms, config.objective)
        for live in self.repository.live:
            configure_upstreams(live.node, config.upstreams_of(known.get(live.key, live.entry)))

    def _apply_limits(self) -> None:
        self.admission.queue = self.config.queue
        self.access.replace_rates(self.config.rates)
        for node in self.repository.nodes:
            node.limit_queue(self.config.queue)

    async def _check_endpoints(self, config: NodeConfig) -> None:
        """Check new upstreams and floors of the models that stay; others are checked when they are loaded."""
        known = {entry.key: entry for entry in config.entries}
        for live in self.repository.live:
            entry = known.get(live.key) or (live.entry if live.key in self.repository.found else None)
            if entry is None:
                continue
            upstreams = upstreams_with(live.node, config.upstreams_of(entry))
            floor = entry.endpoints.terms.with_defaults(config.terms).accuracy_floor
            discovers = entry.endpoints.discovers
            is_alone = not upstreams and not (self.discovers if discovers is None else discovers)
            await self._check_floor(live, entry, floor if is_alone else None)

    async def _check_floor(self, live: LiveModel, entry: ModelEntry, floor: float | None) -> None:
        """Raise NodeError if a model that answers alone never reaches `floor`; None for no check."""
        node = live.node
        was_alone = not node.router.states(node.clock())
        if floor is None or len(node.sessions) > 1 or (was_alone and floor == node.terms.accuracy_floor):
            return
        live.hold(live.last_used_s)
        try:
            if await asyncio.to_thread(live.is_of, entry):
                await asyncio.to_thread(plan_for_floor, floor, node.served)
        finally:
            live.release(live.last_used_s)


def plan_for_floor(floor: float, served: Session[Any]) -> None:
    """Make the session compute its plans in advance, so that no request waits for them.

    Raises NodeError if the node's own floor would refuse every request.
    """
    try:
        served.curve(floor)
    except BudgetError as error:
        raise NodeError(f"no request could have an accuracy floor of {floor:g}: {error}") from error
