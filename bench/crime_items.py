"""Every table and figure of CRIME's paper: its location here, and the result."""

from collections.abc import Mapping, Sequence
from typing import Any

from crime_tables import PAPER, holds

_NONE = "not run: its data are missing"
_BEST_PING_S = (60.0, 600.0)
"""The optimum of T_ping in CRIME, Figure 13."""


def items(found: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row for each item: a result, or a miss with its reason."""
    rows = (
        (
            "Figure 1, eq. 1 (the LSTM)",
            "tests/run/array_sessions/test_recurrent_session.py",
            "result: [crime.outputs], recurrent.md",
        ),
        (
            "Figure 2, 3.1 (no gain in cutting an inference)",
            "tests/route/test_oracle.py",
            "result: whole inferences alone are mapped, as the paper argues; cut ones are not measured",
        ),
        (
            "Eq. 2 (round trip + bytes / bandwidth)",
            "tests/route/test_transfer.py",
            "result: no clocks compared",
        ),
        ("Figure 3 (break-evens)", "crime_figures.py", _figure_3(found)),
        ("Figure 4 (a node's model)", "src/pliant/route/router.py", "result: tests/route/test_router.py"),
        (
            "Figure 5 (curves on the way down)",
            "tests/route/test_advert_cache.py",
            "result: the least of the curves, exact at every integer length",
        ),
        ("Eq. 3 to 7 (decision)", "crime_decide.py", "result: [crime.decide]"),
        ("Figure 6 (time under load)", "crime_measure.py", _figure_6(found)),
        (
            "Figure 7 (the response packet)",
            "tests/route/test_node_messages.py",
            "result: to the byte, and its sizes count here",
        ),
        (
            "Figure 8 (power by length)",
            "src/pliant/route/choice/energy.py",
            "miss: no meter here (no RAPL, no hwmon); the paper's watts are data, with their source",
        ),
        (
            "Eq. 8, 9 (energy)",
            "tests/route/choice/test_energy.py",
            "result: and the oracle's, tests/route/test_oracle.py",
        ),
        ("Figure 9 (systems A, B, C)", "crime_worlds.py", "result: as worlds of the simulator"),
        ("Figure 10 (a to d)", "crime_figures.py", _figure_10(found)),
        ("Table 1", "crime_tables.py", _table(found, ("artificial", "RIPE Atlas"))),
        ("Table 2", "crime_tables.py", _table(found, ("B", "C"))),
        ("Figure 11 (devices by length)", "crime_figures.py", _figure_11(found)),
        ("Figure 12 (devices over time)", "crime_figures.py", _figure_12(found)),
        ("Figure 13 (T_ping)", "crime_figures.py", _figure_13(found)),
        ("Figure 14 (energy)", "crime_figures.py", _figure_14(found)),
    )
    return [dict(zip(("item", "script", "result or miss"), row, strict=True)) for row in rows]


def _figure_3(found: Mapping[str, Any]) -> str:
    said = [
        f"{rows[0]['curves']}: gateway from {rows[1]['quickest from (paper)'].split()[0]}, cloud from "
        f"{rows[2]['quickest from (paper)'].split()[0]} words"
        for rows in found["figure 3"]
    ]
    return f"result: {'; '.join(said)} (4 and 11 are put in; at 4 and 11 both take the same)"


def _figure_6(found: Mapping[str, Any]) -> str:
    if not found.get("figure 6"):
        return "not measured"
    last = found["figure 6"][-1]
    return (
        f"result: linear with {last['inferences at once']} at once, slope "
        f"{last['times one (paper, from its MSE)']} times that of one (paper)"
    )


def _figure_10(found: Mapping[str, Any]) -> str:
    rows = [
        row for row in found["figure 10"] if row["panel"].startswith("a") and row["round trip [ms]"] == 200
    ]
    if not rows:
        return _NONE
    said = [f"{r['curves']} {r['vs end [%]']:.1f} and {r['vs cloud [%]']:.1f} %" for r in rows]
    return f"result: at 200 ms on SNLI saved of end node and cloud: {', '.join(said)} (19 and 10)"


def _table(found: Mapping[str, Any], systems: Sequence[str]) -> str:
    rows = [row for row in found["tables"] if row["system"] in systems]
    if not rows:
        return _NONE
    short = [f"{r['curves']} {r['system']} {r['test']}" for r in rows if not holds(r)]
    over = [max(row["over"], row["over own"]) for row in rows]
    paper = [PAPER[system, test][-1] for system, test in PAPER if system in systems]
    published = [f"{r['curves']} {r['system']} {r['test']}" for r in rows if r["plain over"] > 1.0]
    verdict = f"miss in {', '.join(short)}" if short else "result"
    if published:
        verdict += f"; miss of the published policy (over 1 %) in {', '.join(published)}"
    printed = f"{min(paper)} to {max(paper)}"
    return f"{verdict}: {min(over):.3f} to {max(over):.3f} % over the oracle (paper: {printed})"


def _figure_11(found: Mapping[str, Any]) -> str:
    if not found["figure 11"]:
        return _NONE
    said = []
    for curves in dict.fromkeys(row["curves"] for row in found["figure 11"]):
        rows = [row for row in found["figure 11"] if row["curves"] == curves]
        local = max((row["words"] for row in rows if row["end"] > 50), default=0)
        cloud = min((row["words"] for row in rows if row["cloud"] > 50), default=None)
        said.append(f"{curves}: here up to {local}, the cloud from {cloud} words")
    return f"result: short here, middle on the gateway, long in the cloud ({'; '.join(said)})"


def _figure_12(found: Mapping[str, Any]) -> str:
    if not found["figure 12"]:
        return _NONE
    one = found["figure 12"]
    return f"result: {one['right']:.1f} % of the choices are the oracle's, {one['over']:.2f} % more time"


def _figure_13(found: Mapping[str, Any]) -> str:
    rows = [row for row in found["figure 13"] if row["curves"] == "reconstructed"]
    if not rows:
        return _NONE
    plain, ours = "paper's policy: over the oracle [%]", "ours: over the oracle [%]"
    least = min(rows, key=lambda row: row[plain])
    spread = [row[ours] for row in rows]
    low_s, high_s = _BEST_PING_S
    is_there = low_s <= least["T_ping [s]"] <= high_s and least[plain] <= 1.0
    return (
        f"{'result' if is_there else 'miss'}: the paper's policy is best at {least['T_ping [s]']:g} s "
        f"(there {low_s:g} to {high_s:g} s), with {least[plain]:.2f} % over the "
        f"oracle, with {rows[0][plain]:.1f} and {rows[-1][plain]:.1f} % at the ends; ours "
        f"{min(spread):.2f} to {max(spread):.2f} %"
    )


def _figure_14(found: Mapping[str, Any]) -> str:
    rows = [row for row in found["figure 14"] if row["curves"] == "reconstructed" and row["test"] == "SNLI"]
    times = [
        row for row in found["figure 10"] if row["curves"] == "reconstructed" and row["panel"].startswith("a")
    ]
    if not rows or not times:
        return _NONE
    energy, time = (_meeting(r) for r in (rows, times))
    return (
        f"result: end node and cloud cost the same at {energy:.0f} ms by energy, {time:.0f} ms by time: "
        "shifted to the left, as in the paper"
    )


def _meeting(rows: Sequence[Mapping[str, Any]]) -> float:
    """The round trip at which both single devices have equal cost."""
    before = rows[0]
    for row in rows[1:]:
        gap, last = (r["vs end [%]"] - r["vs cloud [%]"] for r in (row, before))
        if gap <= 0.0:
            part = last / (last - gap) if last > gap else 0.0
            return float(
                before["round trip [ms]"] + part * (row["round trip [ms]"] - before["round trip [ms]"])
            )
        before = row
    return float("nan")
