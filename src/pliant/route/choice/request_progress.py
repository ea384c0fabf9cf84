"""Decisions on a request in progress: the next endpoint, and when to start a second one beside the first.

The dispatcher of nodes and the simulator follow the same functions; what they start and await is their own.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from pliant.route.choice.candidate import Candidate
from pliant.route.choice.choose_endpoint import LOCAL, Choice, choose
from pliant.route.choice.hedge import Hedge, hedge, overdue_s, spare_s
from pliant.route.choice.request_terms import Terms

_LATE_TURN, _LATE_S = 1.05, 0.01
"""A request's start is late after this multiple of its expected wait, plus this many seconds."""
_MOST_FAILURES = 2
"""Upstreams that may fail a request before it is answered locally: each failure costs time."""
SHORTEST_S, PATIENCE = 2.0, 10.0
"""The usual timeout of an upstream's answer: a multiple of its expected time, and its least value."""
_FAIR = 0.25
"""A timeout below this fraction of the usual one, because of a deadline or client, does not count as a
failure. Downstream nodes that each wait half as long reach it after three hops."""


@dataclass(frozen=True, slots=True)
class AnswerTimeout:
    """An upstream's answer is awaited for `seconds`; without it, the upstream has failed if `is_failure`."""

    seconds: float
    is_failure: bool


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    """An answer of length n in progress at the endpoint `choice` of this device.

    `now_s` is the clock, `begun_s` the time at which the work began (None while it waits), `terms_at` gives
    the request's terms at a time, and `choose` the best endpoint without those named, None if there is none;
    `failed` are the endpoints that failed the request so far.
    """

    choice: Choice
    n: int
    now_s: Callable[[], float]
    begun_s: Callable[[], float | None]
    terms_at: Callable[[float], Terms]
    choose: Callable[[Collection[str]], Choice | None]
    failed: Callable[[], Collection[str]]


def plan_hedges(answer: LocalAnswer, plan: Callable[[], Hedge | None]) -> Iterator[float | Choice]:
    """Alternately yield seconds to wait for the answer, and choices to start as well.

    Such a choice is the hedge of `plan` on another endpoint of this device, when time gets short (`LOCAL` has
    none). It is the next best endpoint if the answer is late to begin (when time gets short for it, if it is
    worse: `spare_s`), or if it has run for longer than its bound, or slightly earlier if time gets short
    (`overdue_s`). Continue only while the first answer alone is in progress: a started choice has failed
    then. A request that still waits leaves its queue for such a choice.
    """
    planned = None if answer.choice.target == LOCAL else plan()
    if planned is not None:
        yield planned.after_s
        yield planned.choice
    if answer.terms_at(answer.now_s()).best_effort:
        return
    level, n = answer.choice.option.level, answer.n
    yield _LATE_TURN * max(answer.choice.seconds - level.curve.at(n), 0.0) + _LATE_S
    found = next(_next_best(answer), None) if answer.begun_s() is None else None
    if found is not None:
        if (left_s := spare_s(answer.choice, found, answer.terms_at(answer.now_s()))) > 0.0:
            yield left_s
        if answer.begun_s() is None:
            yield from _next_best(answer)
    now_s = answer.now_s()
    begun_s = answer.begun_s()
    begun_s = now_s if begun_s is None else begun_s
    after_s, deadline_s = level.bound_curve.at(n) + _LATE_S, answer.terms_at(begun_s).deadline_s
    if deadline_s is not None and (found := next(_next_best(answer), None)) is not None:
        after_s = overdue_s(level.curve.at(n), after_s, found, deadline_s) or after_s
    yield max(begun_s + after_s - now_s, 0.0)
    yield from _next_best(answer)


def barred_hedges(answer: LocalAnswer) -> tuple[tuple[str, ...], ...]:
    """The endpoints that are no hedge for an upstream started beside `answer`: see `plan_hedge`.

    The endpoint of `answer` is none, unless the request leaves its queue and no other has time for it.
    """
    own = (answer.choice.target,)
    return (own, ()) if answer.begun_s() is None else (own,)


def plan_hedge(
    n: int,
    choice: Choice,
    here: Sequence[Candidate],
    terms: Terms,
    failed: Collection[str],
    barred: Iterable[Collection[str]] = ((),),
) -> Hedge | None:
    """The endpoint of this device to start while `choice` is pending, and when; `here` have room.

    It is none that `failed`, and none in the first of `barred`; if there is none, none in the next.
    """
    for some in barred:
        ways = [way for way in here if way.name not in (*failed, *some, choice.target)]
        if (planned := hedge(n, choice, ways, terms)) is not None:
            return planned
    return None


def choose_local(n: int, here: Iterable[Candidate], terms: Terms) -> Choice:
    """Choose this device's own session where no other endpoint is available, even if its answer is late.

    Raises BudgetError if it does not reach the floor.
    """
    ways = [way for way in here if way.name == LOCAL]
    return choose(n, ways, terms=replace(terms, best_effort=True))


def is_final(choice: Choice, refused: Collection[str]) -> bool:
    """Whether the refusal of the chosen endpoint is the answer: it has refused, and no other is available."""
    return choice.target in refused


def may_forward(failed: Collection[str], here: Collection[str]) -> bool:
    """Whether a request may go to another upstream, after those of `failed` that are not `here` failed."""
    return sum(name not in here for name in failed) < _MOST_FAILURES


def patience_s(terms: Terms, sender_s: float | None) -> float:
    """How long a request of `terms` may be at an upstream; infinity without a limit.

    That is until its deadline, since a late answer is useless, and a hedge is in time for it. The node that
    sent the request waits for `sender_s` (None: no limit is known); if that ends before the deadline, the
    half of it is for another attempt.
    """
    sender_s = inf if sender_s is None else sender_s
    deadline_s = terms.deadline_s
    if deadline_s is not None and not terms.best_effort and deadline_s <= sender_s:
        return deadline_s
    return sender_s / 2.0


def answer_timeout(expected_s: float, patience_s: float, most_s: float) -> AnswerTimeout:
    """The timeout of an answer that is expected after `expected_s`, at most `patience_s` and `most_s`."""
    usual_s = min(most_s, max(SHORTEST_S, PATIENCE * expected_s))
    seconds = min(usual_s, patience_s)
    return AnswerTimeout(seconds, seconds >= _FAIR * usual_s)


def network_s(choice: Choice, n: int, wait_s: float) -> float:
    """The network time to an upstream and back, without the wait of `wait_s` and the work there."""
    return max(0.0, choice.seconds - wait_s - choice.option.level.curve.at(n))


def _next_best(answer: LocalAnswer) -> Iterator[Choice]:
    """The next best endpoints whose answers may be in time, each once."""
    barred: tuple[str, ...] = (answer.choice.target,)
    while True:
        tried = (*answer.failed(), *barred)
        found = answer.choose(tried)
        if found is None or found.option.excluded or found.target in tried:
            return
        barred = (*barred, found.target)
        yield found
