"""[slo.faults] An hour with compressed gaps: every request is answered once, correctly, or refused in
time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import pliant
from report import Report
from research.deadline_world import Scenario
from slo_lab import Lab, jobs_of
from slo_records import Record, Texts
from slo_rig import MODEL
from slo_ways import ROUTED, SINGLES

_LATE_S = 0.1
"""The allowed delay of a refusal after the deadline, for waking a thread."""


def faults(report: Report, lab: Lab, scenarios: Sequence[Scenario]) -> None:
    """One row for each way and seed, including single ways; the claim is for routed ways."""
    rows: list[dict[str, Any]] = []
    lab.fill(jobs_of((*SINGLES, *ROUTED), scenarios))
    for scenario in scenarios:
        right = references(scenario, lab.texts)
        whole = lab.known(scenario).levels[-1].accuracy
        for way in (*SINGLES, *ROUTED):
            records, twice = lab.run(way, scenario)
            wrong, lost = wrong_of(records, right), lost_of(records)
            rows.append(
                {"way": way, "seed": scenario.seed, "requests": len(records)}
                | {"attained [%]": 100 * sum(r.attained(whole) for r in records) / len(records)}
                | _counts(records)
                | {"no word in time": len(lost), "wrong": len(wrong), "executed twice above": twice}
            )
            if way in ROUTED:
                report.claim(
                    "slo.faults",
                    f"{len(lost)} without a word in time, {len(wrong)} wrong, {twice} executed twice, of "
                    f"{len(records)}",
                    "every request is answered once, correctly, or refused by its deadline",
                    not (lost or wrong or twice) and len(records) == len(scenario.requests),
                    f"{way}; an hour in {scenario.duration_s / scenario.speed:g} s; right is what some level "
                    "of the model says of the text",
                )
    report.table("An hour with faults", rows)


def references(scenario: Scenario, texts: Texts) -> Mapping[int, frozenset[str]]:
    """By request, the labels that any level of the model gives its text; a single one for most texts."""
    found: dict[str, frozenset[str]] = {}
    with pliant.open(MODEL, preload="100MB", adapt=False) as session:
        for text in {texts.of(request)[0] for request in scenario.requests}:
            request = session.request({"text": np.array([text.encode()], object)})
            labels, floor = set(), 0.0
            while floor <= (session.best or 0.0):
                reply = session.answer(replace(request, accuracy_floor=floor or 1e-6))
                labels.add(str(reply.label))
                floor = (reply.accuracy or 1.0) + 1e-6
            found[text] = frozenset(labels)
    return {request.number: found[texts.of(request)[0]] for request in scenario.requests}


def wrong_of(records: Sequence[Record], right: Mapping[int, frozenset[str]]) -> list[Record]:
    """Answers with a label that no level of the model gives."""
    return [r for r in records if r.label is not None and r.label not in right[r.number]]


def lost_of(records: Sequence[Record]) -> list[Record]:
    """Requests that were neither answered nor refused by their deadline."""
    return [r for r in records if r.label is None and r.seconds > r.deadline_s + _LATE_S]


def _counts(records: Sequence[Record]) -> dict[str, Any]:
    why = Counter(r.reason.partition(":")[0] for r in records if r.label is None)
    return {
        "answered": sum(r.label is not None for r in records),
        "late": sum(r.label is not None and not r.in_time for r in records),
        "refused": sum(why.values()),
        "refused by": ", ".join(f"{name} {count}" for name, count in why.most_common()) or "none",
    }
