"""Choose the plan for a request, or for several that run together, over the weights in memory."""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import final

from pliant.ir.endpoint import Request
from pliant.ir.reply import Reply
from pliant.ir.times.bounds import AdaptiveBound
from pliant.ir.times.level_selector import LevelChoice, LevelSelector
from pliant.plan.plan import Plan
from pliant.run.process_memory import MemoryBudget
from pliant.run.session.text_session import TextInput
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.submodel.elastic_levels import plan_levels
from pliant.run.submodel.elastic_replies import AnswerTimes
from pliant.run.submodel.length_limit import LengthLimit
from pliant.run.submodel.submodel_runner import SubmodelRunner, TextAnswer
from pliant.run.submodel.submodel_share import SubmodelShare

ReplyBuilder = Callable[[Sequence[TextAnswer], Sequence[AnswerTimes]], list[Reply[ElasticDetails]]]

_BEST, _ACCURATE, _IN_TIME = "best", "accurate", "in time"


@final
class RequestPlans:
    """The levels of one runner, corrected by the measured times of requests: `single`, and several together.

    Several requests are planned as one input with the rows of all of them. Their times have a separate bound,
    because each attends to fewer rows and has a head of its own. Call with the lock held, except for
    `single` and `limit`, the longest input that there is memory for.
    """

    def __init__(
        self,
        runner: SubmodelRunner,
        name: str,
        budget: SubmodelShare | MemoryBudget | None = None,
        fixed: Plan | None = None,
    ) -> None:
        self._runner, self._name = runner, name
        self.limit = LengthLimit(runner, budget, fixed)
        self._paces = AdaptiveBound(), AdaptiveBound()
        self._n_changes = 0
        self.single: LevelSelector | None = None
        self._batched: LevelSelector | None = None

    def renew(self) -> LevelSelector:
        """Plan over the weights in memory now, if that is not done yet."""
        if self.single is None or self._batched is None or self._n_changes != self._runner.n_changes:
            made = plan_levels(self._runner)
            self._batched = LevelSelector(made, self._name, self._paces[1])
            self.single = LevelSelector(made, self._name, self._paces[0])
            self._n_changes = self._runner.n_changes
            self.limit.renew()
        return self.single

    def pick(self, requests: Sequence[Request]) -> LevelChoice:
        """The level for requests of one key: it meets the earliest deadline and the highest accuracy floor.

        Raises BudgetError for a floor that cannot be met.
        """
        n_rows = sum(request.length for request in requests)
        floors = [one.accuracy_floor for one in requests if one.accuracy_floor is not None]
        deadlines_s = [one.deadline_s for one in requests if one.deadline_s is not None]
        return self._of(requests).pick(n_rows, max(floors, default=None), min(deadlines_s, default=None))

    def answer(
        self, requests: Sequence[Request], inputs: Sequence[TextInput], build_replies: ReplyBuilder
    ) -> list[Reply[ElasticDetails]]:
        """Answer `inputs`, the inputs of `requests`, in one run; returns the result of `build_replies`."""
        turn_s = time.perf_counter()
        pick, trade = self.pick(requests), self._of(requests)
        assert isinstance(pick.level.key, float)
        answered = self._runner.answer(
            [one.encoded for one in inputs],
            pick.level.key,
            cpu_s=sum(one.cpu_s for one in inputs),
            as_profiled=True,
            # Bits are dropped for late reads only to meet a deadline, never with an accuracy floor.
            is_timed=all(one.deadline_s is not None and not one.accuracy_floor for one in requests),
        )
        end_s = time.perf_counter()
        times = [AnswerTimes(end_s - one.start_s, turn_s - one.ready_s, pick.level.key) for one in inputs]
        replies = build_replies(answered, times)
        self._runner.count_kept()
        n_rows = answered[0].n_rows
        # The time spent waiting for other threads is not attributed to the device.
        trade.observe(pick.level, n_rows, end_s - turn_s + sum(one.ready_s - one.start_s for one in inputs))
        expected_s, whole_s = (one.at(n_rows).median_s for one in (pick.level, trade.best_level(n_rows)))
        return [
            replace(
                reply,
                target_s=request.deadline_s,
                whole_s=whole_s / expected_s * reply.seconds if expected_s else None,
                details=replace(reply.details, within_reach=pick.is_met),
            )
            for request, reply in zip(requests, replies, strict=True)
        ]

    def _of(self, requests: Sequence[Request]) -> LevelSelector:
        self.renew()
        trade = self.single if len(requests) == 1 else self._batched
        assert trade is not None
        return trade


def batch_key(request: Request) -> Hashable:
    """The batch key. Requests of one key may share a plan without losing accuracy for another's deadline.

    Requests without terms get the best plan, requests with only an accuracy floor the fastest plan above it,
    and requests with a deadline the plan that `LevelSelector.pick` chooses for it.
    """
    if request.deadline_s is not None:
        return _IN_TIME
    return _BEST if request.accuracy_floor is None else _ACCURATE
