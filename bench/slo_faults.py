"""[slo.faults] An hour with compressed gaps: every request is answered once, correctly, or refused at once.

A refusal comes at once if no endpoint can answer, or once an endpoint has failed that had the request.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from statistics import median
from typing import Any

import numpy as np

import pliant
from pliant.run.submodel.elastic_levels import plan_levels
from pliant.run.submodel.elastic_session import ElasticSession
from report import Report
from research.deadline_world import Scenario
from slo_lab import Lab, jobs_of
from slo_records import Record, Texts
from slo_rig import MODEL, courses
from slo_ways import ROUTED, SINGLES

_LATE_S = 0.1
"""The allowed delay of a refusal after the deadline, for waking a thread."""
AT_ONCE_S = 0.1
"""The most that a refusal takes if no endpoint could answer."""


def faults(report: Report, lab: Lab, scenarios: Sequence[Scenario]) -> None:
    """One row for each way and seed, including single ways; the claim is for routed ways."""
    rows: list[dict[str, Any]] = []
    delays: list[dict[str, Any]] = []
    lab.fill(jobs_of((*SINGLES, *ROUTED), scenarios))
    for scenario in scenarios:
        right = references(scenario, lab.texts)
        whole = lab.known(scenario).levels[-1].accuracy
        for way in (*SINGLES, *ROUTED):
            records, twice = lab.run(way, scenario)
            wrong, lost, slow = wrong_of(records, right), lost_of(records), slow_of(records, scenario)
            rows.append(
                {"way": way, "seed": scenario.seed, "requests": len(records)}
                | {"attained [%]": 100 * sum(r.attained(whole) for r in records) / len(records)}
                | _counts(records)
                | {"no word in time": len(lost), "wrong": len(wrong), "executed twice above": twice}
            )
            delays.append({"way": way, "seed": scenario.seed} | refusal_delays(records, scenario))
            if way in ROUTED:
                report.claim(
                    "slo.faults",
                    f"{len(lost)} without a word in time, {len(wrong)} wrong, {twice} executed twice, "
                    f"{len(slow)} refused later without a fault, of {len(records)}",
                    "every request is answered once, correctly, or refused at once, or after a fault",
                    not (lost or wrong or twice or slow) and len(records) == len(scenario.requests),
                    f"{way}; an hour in {scenario.duration_s / scenario.speed:g} s; right is what some level "
                    f"of the model says of the text, at once is within {1e3 * AT_ONCE_S:g} ms",
                )
    report.table("An hour with faults", rows)
    report.table(f"Refusals within {1e3 * AT_ONCE_S:g} ms, and later ones", delays)


def references(scenario: Scenario, texts: Texts) -> Mapping[int, frozenset[str]]:
    """By request, the labels that any level of the model gives its text; a single one for most texts.

    The levels are those of a device with one thread, as the devices of the testbed have: with two threads
    others are the fastest.
    """
    found: dict[str, frozenset[str]] = {}
    with pliant.open(MODEL, threads=1, preload="100MB", adapt=False) as session:
        assert isinstance(session, ElasticSession)
        levels, run, labels = plan_levels(session.runner), session.runner.answer, session.labels or ()
        for text in {texts.of(request)[0] for request in scenario.requests}:
            encoded = session.encode(text)
            keys = [one.key for one in levels if one.first <= encoded.n_tokens <= one.last]
            ran = [run([encoded], key, as_profiled=True, is_timed=False)[0].numbers for key in keys]
            found[text] = frozenset(labels[int(np.argmax(numbers))] for numbers in ran)
    return {request.number: found[texts.of(request)[0]] for request in scenario.requests}


def wrong_of(records: Sequence[Record], right: Mapping[int, frozenset[str]]) -> list[Record]:
    """Answers with a label that no level of the model gives."""
    return [r for r in records if r.label is not None and r.label not in right[r.number]]


def lost_of(records: Sequence[Record]) -> list[Record]:
    """Requests that were neither answered nor refused by their deadline."""
    return [r for r in records if r.label is None and r.seconds > r.deadline_s + _LATE_S]


def later_of(records: Sequence[Record]) -> list[Record]:
    """Refusals that did not come at once."""
    return [r for r in records if r.label is None and r.seconds > AT_ONCE_S]


def slow_of(records: Sequence[Record], scenario: Scenario) -> list[Record]:
    """Refusals that did not come at once, while no link and no device failed."""
    return [r for r in later_of(records) if not has_fault(scenario, r)]


def has_fault(scenario: Scenario, record: Record) -> bool:
    """Whether a device was gone or the link was cut at any time from a request's arrival to its end."""
    ends_s = record.at_s + record.seconds * scenario.speed
    states = [(scenario.link.starts, [link is None for link in scenario.link.links])]
    paces = [course.slower for course in courses(scenario).values()]
    states += [(pace.starts, [times == inf for times in pace.values]) for pace in paces]
    for starts, is_gone in states:
        ends = (*starts[1:], inf)
        for begin_s, end_s, gone in zip(starts, ends, is_gone, strict=True):
            if gone and begin_s <= ends_s and end_s >= record.at_s:
                return True
    return False


def refusal_delays(records: Sequence[Record], scenario: Scenario) -> dict[str, Any]:
    """How soon refusals came: those at once, and the later ones, with and without a fault meanwhile."""
    seconds = [r.seconds for r in records if r.label is None]
    at_once = [s for s in seconds if s <= AT_ONCE_S]
    later = [s for s in seconds if s > AT_ONCE_S]
    return {
        "at once": len(at_once),
        "median ms": 1e3 * median(at_once) if at_once else "",
        "worst ms": 1e3 * max(at_once) if at_once else "",
        "later": len(later),
        "median ms of later": 1e3 * median(later) if later else "",
        "worst ms of later": 1e3 * max(later) if later else "",
        "without a fault": len(slow_of(records, scenario)),
    }


def _counts(records: Sequence[Record]) -> dict[str, Any]:
    why = Counter(r.reason.partition(":")[0] for r in records if r.label is None)
    return {
        "answered": sum(r.label is not None for r in records),
        "late": sum(r.label is not None and not r.in_time for r in records),
        "refused": sum(why.values()),
        "refused by": ", ".join(f"{name} {count}" for name, count in why.most_common()) or "none",
    }
