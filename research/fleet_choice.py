"""Choose a request's endpoint at a simulated node, and its hedge, as in serve/answers/dispatch.py."""

from collections.abc import Collection, Iterable
from random import Random
from typing import final

from pliant.errors import BudgetError, DeadlineError, RouteError
from pliant.route.choice.choose_endpoint import Choice
from pliant.route.choice.hedge import Hedge
from pliant.route.choice.request_progress import choose_local, plan_hedge
from research.fleet_node import Request
from research.fleet_policies import Policy
from research.virtual_clock import VirtualClock


@final
class FleetChoice:
    """Choices by `policy` at the present time of `clock`."""

    def __init__(self, clock: VirtualClock, policy: Policy, random: Random) -> None:
        self._clock, self._policy, self._random = clock, policy, random

    def choose(self, asked: Request, failed: Collection[str] = ()) -> Choice | None:
        """The best endpoint by the current queues, none that `failed`; None if there is none.

        It is one that failed if the others are not available.
        """
        node, router, now_s = asked.node, asked.node.router, self._clock.now_s
        node.offer(now_s)
        exclude = (*failed, *node.excluded())
        terms = asked.terms_at(now_s)
        try:
            return self._policy(router, asked.n, now_s, exclude, asked.trail, terms, self._random, not failed)
        except (DeadlineError, BudgetError):
            return None
        except RouteError:
            try:
                return choose_local(asked.n, router.ways_here, terms)
            except BudgetError:
                return None

    def plan_hedge(
        self, asked: Request, choice: Choice, barred: Iterable[Collection[str]] = ((),)
    ) -> Hedge | None:
        """The local endpoint to start while `choice` is pending, and when; see `plan_hedge` of nodes."""
        node = asked.node
        here = [way for way in node.router.ways_here if node.machines[way.name].has_room]
        return plan_hedge(asked.n, choice, here, asked.terms_at(self._clock.now_s), asked.failed, barred)
