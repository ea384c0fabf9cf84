"""Measure the oracle's data for bench/slo.py: the levels of the model, and the overheads of cluster and hop.

All values are measured on an idle testbed, by answers to one text; the dependence of a level's time on the
length is the session's prediction.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from pliant.errors import BudgetError
from pliant.ir.curve import Curve
from research.deadline_oracle import Level, OracleInputs
from research.deadline_world import Scenario
from slo_records import Texts
from slo_rig import LOCAL, Bed
from slo_ways import open_cluster, open_local, upstream_alone

_WORDS = (4, 12, 20, 30, 45)
_TOKENS = 24
_N_TRIALS = 7
_PATIENCE_S = 5.0
_SLOWER = 3.0
"""A dilation of this device, to measure its part of a cluster's answer."""
_SLOW_S = 10.0
"""The time set for a worker that should get no work."""
_MORE = 1e-6


def measure_known(bed: Bed, scenario: Scenario, texts: Texts) -> OracleInputs:
    """The data of a testbed in its state at the scenario's start. Raises RefusedError if the gateway does not
    answer.
    """
    bed.mend(scenario)
    with open_local(bed) as session:
        slope, start = _tokens_by_words(session, texts)
        words = round((_TOKENS - start) / slope)
        text = _text_of(texts, words)
        request = session.request({"text": np.array([text.encode()], object)})
        whole_s = scenario.local.seconds(0.0)
        found, floor = [], 0.0
        while (accuracy := _next(session, floor)) is not None:
            asked = replace(request, accuracy_floor=accuracy)
            part = _median_s(lambda asked=asked: session.answer(asked)) / whole_s  # type: ignore[misc]
            shape = [(n, _predicted_s(session, round(start + slope * n), accuracy)) for n in _WORDS]
            there_s = _predicted_s(session, request.length, accuracy)
            found.append(Level(accuracy, Curve(tuple((n, part * s / there_s) for n, s in shape))))
            floor = accuracy + _MORE
    levels = tuple(found)
    part = levels[-1].part.at(words)
    here_s = part * scenario.local.seconds(0.0)
    beside_s = part * min(worker.seconds(0.0) for worker in scenario.workers.values())
    with open_cluster(bed) as cluster:
        cluster.curve()
        offered = [level.accuracy or 0.0 for level in cluster.levels()]
        together = tuple(
            one.accuracy for one in levels if min(abs(one.accuracy - a) for a in offered) < _MORE
        )
        together_s = _median_s(lambda: cluster(text))
        bed.set_pace(LOCAL, _SLOWER * scenario.local.seconds(0.0))
        slowed_s = _median_s(lambda: cluster(text))
        bed.set_pace(LOCAL, scenario.local.seconds(0.0))
        for name in scenario.workers:
            bed.set_pace(name, _SLOW_S)
        member_part = min(_median_s(lambda: cluster(text)) / here_s, 1.0)
    bed.mend(scenario)
    link = scenario.link.at(0.0, 0.0)
    assert link is not None, "a world begins with its link up"
    with upstream_alone(bed) as ask:
        above_s = _median_s(lambda: ask(text, _PATIENCE_S, 0.0))
    hop_s = above_s - link.latency_s - part * scenario.gateway.seconds(0.0)
    ends_s = max(slowed_s - together_s, 0.0) / (_SLOWER - 1.0)
    exchange_s = together_s - member_part * beside_s - ends_s
    primary_part = ends_s / scenario.local.seconds(0.0)
    known = OracleInputs(levels, member_part, primary_part, max(exchange_s, 0.0), max(hop_s, 0.0))
    return replace(known, together=together)


def _next(session: Any, floor: float) -> float | None:
    """The accuracy of the fastest level of at least `floor` at 24 tokens; None if there is none."""
    try:
        return float(session.trade.pick(_TOKENS, floor).level.accuracy)
    except BudgetError:
        return None


def _predicted_s(session: Any, n: int, accuracy: float) -> float:
    return float(session.trade.pick(n, accuracy).level.at(n).median_s)


def _tokens_by_words(session: Any, texts: Texts) -> tuple[float, float]:
    """Slope and intercept of the line of tokens by words."""
    some = [(n, session.encode(these[0][0]).n_tokens) for n, these in sorted(texts.by_words.items())]
    slope, start = np.polyfit(*zip(*some, strict=True), 1)
    return float(slope), float(start)


def _text_of(texts: Texts, words: int) -> str:
    nearest = min(texts.by_words, key=lambda n: abs(n - words))
    return texts.by_words[nearest][0][0]


def _median_s(act: Callable[[], object]) -> float:
    """The median seconds of `act`, after a warm-up call."""
    seconds = []
    for _ in range(_N_TRIALS + 1):
        start_s = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - start_s)
    return median(seconds[1:])
