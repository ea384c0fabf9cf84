"""Compute the best possible results in a deadline world (research/deadline_world.py), with full knowledge of
it.

`bound` gives every request the most accurate answer that one way could give in time, as if there were no
other requests, in the state of the world at its arrival: an upper bound of attainment and accuracy but for
requests that would wait for a link or device to get better. `quickest` gives it the quickest answer at its
floor in the same way. `decide_with_hindsight` models queues, one request
after the other at each way, and improves its choices with hindsight until no change helps: the result of a
router that knew the whole world. Nothing is estimated or measured.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Literal

import msgspec

from pliant.ir.curve import Curve
from research.deadline_world import Scenario, TimedRequest, read_toml

Way = Literal["local", "cluster", "upstream"]
WAYS: tuple[Way, ...] = ("local", "cluster", "upstream")


@dataclass(frozen=True, slots=True)
class Level:
    """One way to answer with an elastic model: its accuracy, and its time by words of a text.

    Times are relative to the time of the whole model for 24 tokens on the same device.
    """

    accuracy: float
    part: Curve


@dataclass(frozen=True, slots=True)
class OracleInputs:
    """Known properties of model and network: `levels` with the whole model last; overheads in seconds.

    The cluster answers at the levels whose accuracy is in `together`, or only with the whole model if it is
    empty, on its fastest device, in `member_part` of the time of a session there. If this is a worker, the
    local device still computes input and head, `primary_part` of the whole model's time here, and exchanges
    add `exchange_s`. An answer from upstream takes `hop_s` more than its link and the gateway. A request has
    `request_bytes`, both ways.
    """

    levels: tuple[Level, ...]
    member_part: float = 1.0
    primary_part: float = 0.0
    exchange_s: float = 0.0
    hop_s: float = 0.0
    request_bytes: float = 800.0
    together: tuple[float, ...] = ()

    @property
    def together_levels(self) -> tuple[Level, ...]:
        """The levels of the cluster, the whole model last."""
        return (*(level for level in self.levels[:-1] if level.accuracy in self.together), self.levels[-1])


class _LevelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    accuracy: float
    parts: tuple[float, ...]


class _OracleFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    member_part: float
    primary_part: float
    exchange_s: float
    hop_s: float
    words: tuple[float, ...]
    levels: tuple[_LevelEntry, ...]
    together: tuple[float, ...] = ()


def read_oracle_inputs(path: Path) -> OracleInputs:
    """Read the measured properties of a testbed from its file. Raises InputError."""
    told = read_toml(path, _OracleFile)
    levels = [
        Level(level.accuracy, Curve(tuple(zip(told.words, level.parts, strict=True))))
        for level in told.levels
    ]
    known = OracleInputs(tuple(levels), told.member_part, told.primary_part, told.exchange_s, told.hop_s)
    return replace(known, together=told.together)


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request is answered, its accuracy, and its response time; None if it is refused."""

    way: Way | None
    accuracy: float = 0.0
    seconds: float = inf


@dataclass(frozen=True, slots=True)
class _Option:
    """One way for one request: transfer times there and back, and processing time."""

    way: Way
    accuracy: float
    away_s: float
    work_s: float


def bound(scenario: Scenario, known: OracleInputs, ways: Collection[Way] = WAYS) -> list[Decision]:
    """The most accurate decision for each request alone, by any of `ways`; of equal ones the quickest."""
    return _alone(scenario, known, ways, lambda o: (o.accuracy, -o.away_s - o.work_s))


def quickest(scenario: Scenario, known: OracleInputs, ways: Collection[Way] = WAYS) -> list[Decision]:
    """The quickest decision at its floor for each request alone, without queues."""
    return _alone(scenario, known, ways, lambda o: (-o.away_s - o.work_s, o.accuracy))


def _alone(
    scenario: Scenario,
    known: OracleInputs,
    ways: Collection[Way],
    worth: Callable[[_Option], tuple[float, float]],
) -> list[Decision]:
    """The option of the highest `worth` of each request, as if there were no others."""
    found = []
    for request in scenario.requests:
        best = max(_options(scenario, known, request, ways), key=worth, default=None)
        found.append(
            Decision(None) if best is None else Decision(best.way, best.accuracy, best.away_s + best.work_s)
        )
    return found


def decide_with_hindsight(
    scenario: Scenario, known: OracleInputs, ways: Collection[Way] = WAYS, n_sweeps: int = 4
) -> list[Decision]:
    """Decisions with queues: each of `ways` processes one request after the other, in order of arrival.

    Initial choices are made in order of arrival; then single choices are changed if that improves the total,
    first in attained requests, then in accuracy, until nothing changes or for `n_sweeps`.
    """
    queues = _Queues(scenario, known)
    options = [_options(scenario, known, request, ways) for request in scenario.requests]
    for _ in range(n_sweeps):
        n_changed = sum(queues.improve(i, options[i]) for i in range(len(options)))
        if not n_changed:
            break
    return queues.decisions()


def attained_share(decisions: Sequence[Decision]) -> float:
    """The fraction of requests that are answered in time and at least at their accuracy floor."""
    return sum(d.way is not None for d in decisions) / max(len(decisions), 1)


class _Queues:
    """The requests at each way, and the value of the attained ones."""

    def __init__(self, scenario: Scenario, known: OracleInputs) -> None:
        self._requests, self._speed = scenario.requests, scenario.speed
        whole = known.levels[-1].part
        mean_words = sum(r.n_words for r in self._requests) / max(len(self._requests), 1)
        self._others = [
            (at_s / scenario.speed, scenario.gateway.seconds(at_s) * whole.at(mean_words))
            for at_s in scenario.others_s
            if scenario.gateway.seconds(at_s) < inf
        ]
        self._chosen: list[_Option | None] = [None] * len(self._requests)
        self._members: dict[Way, list[int]] = {way: [] for way in WAYS}
        self._value: dict[Way, float] = dict.fromkeys(WAYS, 0.0)

    def improve(self, i: int, options: Sequence[_Option]) -> bool:
        """Change request i to a better option, or a refusal, given all others; returns whether it changed."""
        before = self._chosen[i]
        best, most = before, 0.0
        without: Mapping[Way, float] = {way: self._valued(way, i, None) for way in WAYS}
        now = 0.0 if before is None else self._value[before.way] - without[before.way]
        for option in options:
            gained = self._valued(option.way, i, option) - without[option.way]
            if gained > max(most, now) + 1e-9:
                best, most = option, gained
        if now < -1e-9 and most <= 0.0:
            best = None
        if best is before:
            return False
        self._chosen[i] = best
        for way in WAYS:
            self._members[way] = [k for k, o in enumerate(self._chosen) if o is not None and o.way == way]
            self._value[way] = self._valued(way, None, None)
        return True

    def decisions(self) -> list[Decision]:
        """The decisions for all requests; a request that is late is refused."""
        found = [Decision(None)] * len(self._requests)
        for way in WAYS:
            for i, option, seconds in self._played(way, ((k, self._option(k)) for k in self._members[way])):
                if seconds <= self._requests[i].deadline_s:
                    found[i] = Decision(way, option.accuracy, seconds)
        return found

    def _option(self, i: int) -> _Option:
        option = self._chosen[i]
        assert option is not None
        return option

    def _valued(self, way: Way, changed: int | None, option: _Option | None) -> float:
        """The value of a way if request `changed` has `option` there, or is removed from it."""
        jobs = [(k, self._option(k)) for k in self._members[way] if k != changed]
        if changed is not None and option is not None:
            jobs.append((changed, option))
        return sum(
            1.0 + done.accuracy
            for i, done, seconds in self._played(way, jobs)
            if seconds <= self._requests[i].deadline_s
        )

    def _played(self, way: Way, jobs: Iterable[tuple[int, _Option]]) -> Iterable[tuple[int, _Option, float]]:
        """Each request with its option and the seconds until its answer."""
        queue: list[tuple[float, float, int, _Option | None]] = [
            (self._requests[i].at_s / self._speed + o.away_s / 2.0, o.work_s, i, o) for i, o in jobs
        ]
        if way == "upstream":
            queue += [(at_s, work_s, -1, None) for at_s, work_s in self._others]
        free_s = 0.0
        for at_s, work_s, i, option in sorted(queue, key=lambda job: job[0]):
            free_s = max(free_s, at_s) + work_s
            if option is not None:
                yield i, option, free_s + option.away_s / 2.0 - self._requests[i].at_s / self._speed


def together_s(
    scenario: Scenario, known: OracleInputs, words: float, now_s: float, level: Level | None = None
) -> float:
    """The time of the cluster's answer to a text of `words` words, on its fastest device.

    With the whole model, or at another `level`.
    """
    work_s = known.member_part * (level or known.levels[-1]).part.at(words)
    beside_s = min((worker.seconds(now_s) for worker in scenario.workers.values()), default=inf)
    here_s = scenario.local.seconds(now_s)
    return min(work_s * here_s, work_s * beside_s + known.primary_part * here_s + known.exchange_s)


def _options(
    scenario: Scenario, known: OracleInputs, request: TimedRequest, ways: Collection[Way]
) -> list[_Option]:
    """The ways that meet deadline and floor without other requests, in the state of the world at its
    arrival.
    """
    now_s, words = request.at_s, request.n_words
    found: list[_Option] = []
    here_s, above_s = scenario.local.seconds(now_s), scenario.gateway.seconds(now_s)
    link = scenario.link.at(now_s, 0.0)
    for level in known.levels:
        found.append(_Option("local", level.accuracy, 0.0, here_s * level.part.at(words)))
        if link is not None and above_s < inf:
            away_s = link.latency_s + known.request_bytes / link.bandwidth_Bps + known.hop_s
            found.append(_Option("upstream", level.accuracy, away_s, above_s * level.part.at(words)))
    for level in known.together_levels:
        work_s = together_s(scenario, known, words, now_s, level)
        found.append(_Option("cluster", level.accuracy, 0.0, work_s))
    return [
        o
        for o in found
        if o.way in ways and o.accuracy >= request.floor and o.away_s + o.work_s <= request.deadline_s
    ]
