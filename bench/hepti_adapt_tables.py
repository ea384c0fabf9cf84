"""Figure 7's table, claims and picture, from the measured results."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from hepti_adapt import NEARER, SEGMENTS, describe
from hepti_rig import PAPER_SLOWER
from pliant.ir.partition import Partition
from report import Claim

PAPER = {1: "12.42", 2: "CoEdge stops"}
ABOVE = "CoEdge above Hepti [%]"
TOLERANCE, BAR = 1e-4, 1.10
_WINDOW = 3
_AGAINST, _SOON = "Hepti's last plan / the plan that knew", "within 10 % after [layers]"
_REST = "rest of that run, from the layer of the change on / who knew"

Turns = Sequence[Mapping[str, Sequence[float]]]
FIGURES: Mapping[str, float] = {"figure 7": PAPER_SLOWER, "figure 7, devices nearer": NEARER}
"""The ratio of the primary's time to the secondary's: as in the paper, and for the case where a split
pays.
"""


def figures(found: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], list[dict[str, Any]]]]:
    """Each figure that was measured, and its rows."""
    for name in FIGURES:
        turns = f"{name}, in turns"
        if turns in found:
            yield name, found[name], rows(found[name], found[turns])


def rows(found: Mapping[str, Any], turns: Turns) -> list[dict[str, Any]]:
    """One row per segment of Figure 7; `turns` are the interleaved layer times of the last plans [ms]."""
    return [_row(found, i, turns[i]) for i in range(len(SEGMENTS))]


def _row(found: Mapping[str, Any], i: int, turns: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    hepti, coedge = found["hepti"][i], found["coedge"][i]
    after = hepti["layers"][hepti["changed at"] or 0 :]
    last_ms, against = _last_ms(hepti), _paired(turns, "hepti", "knew")
    knew_ms = last_ms / against  # at the machine's speed during the series
    first = [one["ms"] for one in after if one["run"] == 0]
    coedge_ms = median(one["ms"] for one in coedge["layers"][-len(coedge["layers"]) // 2 :])
    return {
        "segment": SEGMENTS[i].name,
        "Hepti's last plan, a layer [ms]": last_ms,
        "CoEdge, a layer [ms]": coedge["stopped"] or coedge_ms,
        ABOVE: 100 * (_paired(turns, "coedge", "hepti") - 1) if "coedge" in turns else "-",
        "paper [%]": PAPER.get(i, "-"),
        _AGAINST: against,
        _SOON: settled_after(after, knew_ms) if i else "-",
        _REST: sum(first) / knew_ms / len(first) if i else "-",
        "longest layer of that rest [ms]": max(one["ms"] for one in after if one["run"] == 0) if i else "-",
        "layers by a plan too large": sum(one["too large"] for one in after),
        "secondary's weights [MB]": hepti["weights"] / 1e6,
        "of all weights [%]": 100 * hepti["weights"] / found["all weights"],
        "new plans": "; ".join(hepti["switches"]),
        "Hepti's last plan": hepti["plan"],
        "plan that knew": describe(msgspec.convert(found["knew"][i], Partition)),
        "CoEdge's plan": coedge["plan"],
    }


def _last_ms(segment: Mapping[str, Any]) -> float:
    """The time of a layer with the segment's last plan."""
    return median(one["ms"] for one in segment["layers"] if one["plan"] == segment["plan"])


def _paired(turns: Mapping[str, Sequence[float]], a: str, b: str) -> float:
    return median(x / y for x, y in zip(turns[a], turns[b], strict=True))


def settled_after(after: Sequence[Mapping[str, Any]], knew_ms: float) -> int | None:
    """Layers from the change until one, and the median of it and two more, are within the bar of the informed
    plan.

    The first is the layer in which the world changed, with the replacement of weights. A layer of a plan that
    exceeds the memory is not within the bar.
    """
    times = [math.inf if one["too large"] else one["ms"] for one in after]
    for i in range(len(times) - _WINDOW + 1):
        if max(times[i], median(times[i : i + _WINDOW])) <= BAR * knew_ms:
            return i
    return None


def claims(found: Mapping[str, Any], segments: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Whether Hepti continued where CoEdge stopped, and how soon it reached the informed plan."""
    changed = segments[1:]
    stops = str(changed[-1]["CoEdge, a layer [ms]"])
    runs_on = stops.startswith("out of memory") and found["worst difference"] <= TOLERANCE
    after, ratios = [row[_SOON] for row in changed], [row[_AGAINST] for row in changed]
    is_soon = all(n is not None and n <= 1 for n in after) and max(ratios) <= BAR
    said = "; ".join(
        f"{row[_AGAINST]:.2f}, within 10 % after {row[_SOON]} layers, the run's rest {row[_REST]:.2f}"
        for row in changed
    )
    longest = " and ".join(f"{row['longest layer of that rest [ms]']:.0f}" for row in changed)
    return [
        Claim(
            "hepti.adapt",
            f"CoEdge: {stops}; Hepti runs on: {'yes' if runs_on else 'no'}",
            "Figure 7's third segment runs on, and CoEdge's stops",
            runs_on,
            f"{found['what']}; answers within {found['worst difference']:.1e} of the unsplit model's",
        ),
        Claim(
            "hepti.adapt",
            f"Hepti / the plan that knew: {said}",
            "within 10 % after one layer",
            is_soon,
            f"{found['what']}; bandwidth, then memory, changed inside of a run; plans compared in turns; "
            "layers count from the one in which the world changed, with the replacement of weights; the "
            f"longest: {longest} ms. Splits in {_n_split(found)} of {len(SEGMENTS)} segments. "
            f"{coedge_faster(segments) or 'CoEdge is faster in no segment'}",
        ),
    ]


def coedge_faster(segments: Sequence[Mapping[str, Any]]) -> str:
    """The segments in which CoEdge's plan took less time than Hepti's; empty if there are none."""
    faster = [
        f"{-row[ABOVE]:.0f} % in segment {number}"
        for number, row in enumerate(segments, 1)
        if row[ABOVE] != "-" and row[ABOVE] < 0
    ]
    return f"CoEdge is faster by {', '.join(faster)}" if faster else ""


def _n_split(found: Mapping[str, Any]) -> int:
    """Segments whose last plan is a split."""
    plans = (msgspec.convert(one["partition"], Partition) for one in found["hepti"])
    return sum(len(plan.participants) > 1 for plan in plans)


def series(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Figure 7 as numbers: every layer of both systems, one row per run."""
    table = []
    for system in ("hepti", "coedge"):
        for i, segment in enumerate(found[system]):
            for run in sorted({one["run"] for one in segment["layers"]}):
                own = [one for one in segment["layers"] if one["run"] == run]
                at = segment["changed at"]
                table.append(
                    {
                        "system": {"hepti": "Hepti", "coedge": "CoEdge"}[system],
                        "segment": i + 1,
                        "run": run,
                        "world changes in layer": at if at is not None and not run else "-",
                        "layers [ms]": ", ".join(f"{one['ms']:.0f}" for one in own),
                        "plans": "; ".join(dict.fromkeys(one["plan"] for one in own)),
                    }
                )
    return table


def draw(found: Mapping[str, Any], turns: Turns, path: Path) -> None:
    """Figure 7: every layer's milliseconds, both systems, and the informed plan."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    start = 0
    for i, change in enumerate(SEGMENTS):
        n = max(len(found[s][i]["layers"]) for s in ("hepti", "coedge") if i < len(found[s]))
        for system, style in (("hepti", "C3-"), ("coedge", "C0-")):
            layers = found[system][i]["layers"]
            label = {"hepti": "Hepti", "coedge": "CoEdge"}[system] if i == 0 else None
            axes.plot(range(start, start + len(layers)), [x["ms"] for x in layers], style, lw=1, label=label)
            if found[system][i]["stopped"]:
                axes.plot(start + len(layers) - 1, layers[-1]["ms"], "C0X", markersize=9)
        knew_ms = _last_ms(found["hepti"][i]) / _paired(turns[i], "hepti", "knew")
        changed = found["hepti"][i]["changed at"] or 0
        label = None if i else "plan that knew"
        axes.hlines(knew_ms, start + changed, start + n, "black", "dashed", lw=1, label=label)
        axes.axvline(start + changed, color="grey", lw=0.5)
        axes.annotate(
            change.name, (start + changed, 1), xycoords=("data", "axes fraction"), fontsize=8, va="top"
        )
        start += n
    axes.set(xlabel="layers run", ylabel="ms", ylim=(0, None))
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path)
