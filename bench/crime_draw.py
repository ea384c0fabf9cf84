"""Draw CRIME's figures 10 to 14."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_COLOURS = {"end": "C0", "gateway": "C2", "cloud": "C3", "cloud-1": "C3", "cloud-2": "C1"}


def draw_reductions(rows: Sequence[dict[str, Any]], path: Path, by: str) -> None:
    """Figures 10 and 14: a panel for each value of column `by`, dashed where curves are measured."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(row[by] for row in rows))
    figure = Figure(figsize=(3.2 * len(panels), 2.8), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for curves, style in (("reconstructed", "-"), ("measured", "--")):
            kept = [row for row in rows if row[by] == panel and row["curves"] == curves]
            x = [row["round trip [ms]"] for row in kept]
            for device, colour in (("end", "C3"), ("cloud", "C0")):
                y = [row[f"vs {device} [%]"] for row in kept]
                axes.plot(x, y, f"{colour}{style}", lw=1, label=f"vs {device}, {curves}")
        axes.set_title(panel, fontsize=9)
        axes.set_xlabel("round trip, ms")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("saved, %")
    figure.axes[0].legend(fontsize=6)
    figure.savefig(path)


def draw_by_length(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Figure 11: one bar per length."""
    from matplotlib.figure import Figure

    sets = list(dict.fromkeys(row["curves"] for row in rows))
    figure = Figure(figsize=(4.2 * len(sets), 2.6), layout="constrained")
    for axes, curves in zip(figure.subplots(1, len(sets), squeeze=False)[0], sets, strict=True):
        kept = [row for row in rows if row["curves"] == curves]
        n, below = [row["words"] for row in kept], [0.0] * len(kept)
        for level in ("end", "gateway", "cloud"):
            part = [row[level] for row in kept]
            axes.bar(n, part, bottom=below, color=_COLOURS[level], label=level, width=0.9)
            below = [a + b for a, b in zip(below, part, strict=True)]
        axes.set(title=f"SQuAD, system B, {curves}", xlabel="words", ylabel="inputs, %")
        axes.legend(fontsize=7)
    figure.savefig(path)


def draw_over_time(found: dict[str, Any], path: Path) -> None:
    """Figure 12: round trips, then each device's share, ours and the oracle's; grey from the load on."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.5), layout="constrained")
    top, ours, best = figure.subplots(3, 1, sharex=True)
    minutes = [i * found["slot_s"] / 60 for i in range(len(found["shares"]["ours"]))]
    for name, trips in found["rtts_ms"].items():
        if not name.startswith("end"):
            top.plot(minutes, [float("nan") if t is None else t for t in trips], lw=0.8, label=name)
    top.set_ylabel("round trip, ms")
    top.legend(fontsize=7)
    for axes, name in ((ours, "ours"), (best, "oracle")):
        columns = list(zip(*found["shares"][name], strict=True))
        colours = [_COLOURS[device] for device in found["devices"]]
        axes.stackplot(minutes, *columns, colors=colours, labels=found["devices"])
        axes.set(ylabel=f"{name}, %", ylim=(0, 100))
    for axes in (top, ours, best):
        axes.axvline(found["loaded_from_s"] / 60, color="black", ls=":", lw=1)
    ours.legend(fontsize=7, loc="lower left")
    best.set_xlabel("minutes; the gateway is loaded from the dotted line on")
    figure.savefig(path)


def draw_pings(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Figure 13: T_ping, right choices and time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.8), layout="constrained")
    over, right = figure.subplots(1, 2)
    kept = [row for row in rows if row["curves"] == "reconstructed"]
    x = [row["T_ping [s]"] for row in kept]
    for policy, style, cell in (("paper's policy", "C0o-", "right [%]"), ("ours", "C3s-", "ours: right [%]")):
        over.plot(x, [row[f"{policy}: over the oracle [%]"] for row in kept], style, ms=3, label=policy)
        right.plot(x, [row[cell] for row in kept], style, ms=3, label=policy)
    for axes, what in ((over, "over the oracle, %"), (right, "right, %")):
        axes.set(xscale="log", xlabel="T_ping, s", ylabel=what)
        axes.legend(fontsize=7)
    figure.savefig(path)
