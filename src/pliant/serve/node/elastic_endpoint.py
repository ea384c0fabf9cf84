"""A local elastic session as an endpoint: accuracy for time, by plans and not by trials."""

from itertools import pairwise
from typing import final

import numpy as np

from pliant.api.open_elastic import WHOLE_S
from pliant.errors import InputError
from pliant.ir.endpoint import Estimate, Request
from pliant.ir.reply import Reply
from pliant.ir.times.time_curve import TimeCurve
from pliant.ir.times.trade import Level, Trade
from pliant.run.submodel.session import Session
from pliant.run.text_feeds import classified, text_of

_LEAST_S = 1e-6
_N_TARGETS = 14
"""Plans for each length, from the smallest submodel's time to the whole model's, in equal ratios."""


@final
class ElasticSession:
    """An `Endpoint`; its session answers texts by label, and belongs to it from then on.

    What each way takes and how accurate it is comes from the session's planner, for every profiled length;
    answers then say how fast the device is lately. The preload buffer stays as the session filled it, so open
    the session for the best answer (a target of `WHOLE_S`): smaller ones use part of what that holds.
    """

    def __init__(self, name: str, session: Session) -> None:
        if session.store.spec.head.labels is None:
            raise InputError(f"{name} answers with vectors, not labels; serve a classifier.")
        self.name = name
        self.session = session
        self.trade = Trade(levels(session), name)

    @property
    def best(self) -> float | None:
        """The accuracy of the whole model; None where it was never measured."""
        return self.trade.best

    def curve(self, accuracy_floor: float = 0.0) -> TimeCurve:
        """Seconds by number of tokens of answers at least that accurate. Raises BudgetError."""
        return self.trade.curve(accuracy_floor)

    def estimate(self, request: Request) -> Estimate:
        """Quick, and safe beside a `run` on another thread. Raises BudgetError for a floor out of reach."""
        pick = self.trade.pick(request.length, request.accuracy_floor, request.deadline_s)
        return Estimate(pick.seconds, pick.level.accuracy)

    def answer(self, request: Request) -> Reply[None]:
        """The answer of the submodel that fits what is left. Raises BudgetError, InputError, StoreError."""
        n, text = request.length, request.text
        pick = self.trade.pick(n, request.accuracy_floor, request.deadline_s)
        target_s = pick.level.key
        assert isinstance(target_s, float)
        if text is None:
            text = text_of(request.tensors, self.session.store.spec.max_tokens)
        reply = self.session(text, latency=target_s)
        answered_s = reply.seconds - reply.waited_s  # waiting for other threads says nothing of it
        self.trade.took(pick.level, n, answered_s)
        assert reply.logits is not None
        assert reply.label is not None
        expected_s = pick.level.at(n)
        whole_s = self.trade.fullest(n).level.at(n) * (answered_s / expected_s) if expected_s else None
        outputs = classified(reply.logits, reply.label)
        return Reply(
            outputs,
            self.name,
            answered_s,
            details=None,
            length=n,
            accuracy=reply.expected_accuracy,
            whole_s=whole_s,
            cut=reply.cut,
        )

    def close(self) -> None:
        """End the session."""
        self.session.close()


def levels(session: Session) -> list[Level]:
    """What `session` would run for each profiled length, under targets from the least to any."""
    found: list[Level] = []
    for before, last in pairwise((-1, *session.profile.lengths)):
        least_s, most_s = (session.forecast(last, t, "p95") for t in (_LEAST_S, WHOLE_S))
        spare = 1.0 + 1e-6 - session.options.margin
        targets = np.geomspace(least_s / spare, max(most_s, least_s) / spare, _N_TARGETS)
        found += [_level(session, before + 1, last, t) for t in (_LEAST_S, *targets.tolist(), WHOLE_S)]
    return found


def _level(session: Session, first: int, last: int, target_s: float) -> Level:
    plan = session.plan_at(last, target_s)
    share = plan.n * plan.width * plan.fidelity / (plan.shape.n_layers * plan.shape.n_slices)
    ends = (max(1, first), last)
    seconds = [session.forecast(n, target_s) for n in ends]
    bounds = [max(s, session.forecast(n, target_s, "p95")) for s, n in zip(seconds, ends, strict=True)]
    return Level(
        first=first,
        last=last,
        key=target_s,
        accuracy=plan.expected_accuracy,
        rank=share if plan.expected_accuracy is None else plan.expected_accuracy,
        seconds=(seconds[0], seconds[1]),
        bounds=(bounds[0], bounds[1]),
    )
