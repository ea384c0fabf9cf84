"""Choose a request's endpoint at a simulated node, and its hedge, as in serve/answers/dispatch.py."""

from random import Random
from typing import final

from pliant.errors import BudgetError, DeadlineError, RouteError
from pliant.route.choice.choose_endpoint import LOCAL, Choice, choose
from pliant.route.choice.hedge import Hedge, hedge
from pliant.route.choice.request_terms import Terms
from research.fleet_node import Request
from research.fleet_policies import Policy
from research.virtual_clock import VirtualClock


@final
class FleetChoice:
    """Choices by `policy` at the present time of `clock`, without endpoints that failed a request before."""

    def __init__(self, clock: VirtualClock, policy: Policy, random: Random) -> None:
        self._clock, self._policy, self._random = clock, policy, random

    def choose(self, asked: Request, *but: str) -> Choice | None:
        """The best endpoint except `but`; None if there is none, or only one that refused the request."""
        found = self._best(asked, but)
        return None if found is None or found.target in asked.refused else found

    def plan_hedge(self, asked: Request, choice: Choice) -> Hedge | None:
        """The local endpoint to start while `choice` is pending, and when."""
        node, tried = asked.node, (choice.target, *asked.refused)
        if choice.target == LOCAL:
            return None
        here = [w for w in node.router.ways_here if node.machines[w.name].has_room and w.name not in tried]
        return hedge(asked.n, choice, here, asked.terms_at(self._clock.now_s))

    def _best(self, asked: Request, but: tuple[str, ...]) -> Choice | None:
        router, now_s = asked.node.router, self._clock.now_s
        exclude = (*asked.failed, *asked.refused, *asked.node.excluded(), *but)
        terms = asked.terms_at(now_s)
        try:
            return self._policy(router, asked.n, now_s, exclude, asked.trail, terms, self._random)
        except (DeadlineError, BudgetError):
            return None
        except RouteError:
            here = [way for way in router.ways_here if way.name == LOCAL]
            try:
                return choose(
                    asked.n, here, terms=Terms(terms.deadline_s, terms.accuracy_floor, best_effort=True)
                )
            except BudgetError:
                return None
