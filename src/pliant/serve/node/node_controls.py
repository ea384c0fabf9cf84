"""Controls that change a running node: its models, limits, defaults of requests, and reloads on SIGHUP."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from pliant.errors import BudgetError, NodeError
from pliant.route.choice.objective import Objective
from pliant.route.choice.request_terms import Terms
from pliant.run.session.session import Session
from pliant.serve.access.access import AccessControl
from pliant.serve.access.rates import ClientRates
from pliant.serve.answers.admission import Admission
from pliant.serve.node.reloads import Reloads
from pliant.serve.repository.model_entry import ModelEntry
from pliant.serve.repository.model_repository import ModelRepository


@final
@dataclass(slots=True)
class NodeControls:
    """The controls of one node, on its event loop.

    `queue` applies to each endpoint; `terms` and `objective` are the defaults of requests. All three apply to
    models that are loaded later, too. With `discovers`, upstreams may come at any time.
    """

    repository: ModelRepository
    reloads: Reloads
    access: AccessControl
    admission: Admission
    queue: int
    terms: Terms
    objective: Objective
    discovers: bool = False

    def limit(self, queue: int, rates: ClientRates) -> None:
        """Change the queue limit and the rate limits of a client.

        Requests that already wait stay, even beyond a shorter queue; recent use still counts against the
        rates.
        """
        self.queue = queue
        self.admission.queue = queue
        self.access.replace_rates(rates)
        for node in self.repository.nodes:
            node.limit_queue(queue)

    async def configure(self, entries: Sequence[ModelEntry], terms: Terms, objective: Objective) -> None:
        """Replace the models by `entries`, and the defaults of requests.

        The change is atomic: PliantError is raised if a model cannot be loaded, and NodeError if one that
        answers alone never reaches its accuracy floor.
        """
        await self._check_floors(entries, terms)
        before = self.terms, self.objective
        self.terms, self.objective = terms, objective
        try:
            await self.repository.configure(entries)
        except BaseException:
            self.terms, self.objective = before
            self.repository.use_defaults(*before)  # models were loaded again meanwhile
            raise
        self.repository.use_defaults(terms, objective)

    async def _check_floors(self, entries: Sequence[ModelEntry], terms: Terms) -> None:
        """Check new floors of the models that stay; others are checked when they are loaded."""
        known = {entry.key: entry for entry in entries}
        for live in self.repository.live:
            node = live.node
            entry = known.get(live.key) or (live.entry if live.key in self.repository.found else None)
            if entry is None:
                continue
            floor = entry.endpoints.terms.with_defaults(terms).accuracy_floor
            discovers = entry.endpoints.discovers
            is_alone = len(node.sessions) == 1 and not node.router.states(node.clock())
            is_alone = is_alone and not (self.discovers if discovers is None else discovers)
            if floor is None or floor == node.terms.accuracy_floor or not is_alone:
                continue
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
