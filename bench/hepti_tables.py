"""Figure 6's tables and claims, from the measured results."""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from hepti_modes import MODES, SECOND, SERIAL
from hepti_rig import spread
from report import Claim

Models = Mapping[str, Mapping[str, Any]]
BOUND, PREDICT = 1.15, 0.15
PAPER_S: Mapping[tuple[str, int], Mapping[str, float]] = {
    ("BERT-Large", 940): {SERIAL: 8.0, "ws": 4.07, "1d": 5.4, "2d": 6.4},
    ("MobileBERT", 940): {SERIAL: 0.95, "ws": 0.61, "1d": 0.71, "2d": 0.77},
}
"""5.2, Figure 6, as far as the text gives seconds."""
PAPER_SAVED: Mapping[tuple[str, int], Mapping[str, float]] = {
    ("BERT-Large", 940): {SERIAL: 49.1, "1d": 24.6, "2d": 37.1},
    ("BERT-Large", 470): {"1d": 29.8, "2d": 46.6},
    ("MobileBERT", 940): {"1d": 13.1, "2d": 20.4},
}
"""Percent of time that WS saves against the others."""


def figure_rows(models: Models) -> list[dict[str, object]]:
    """Every mode's seconds, and WS's savings against the others, with the paper's."""
    rows: list[dict[str, object]] = []
    for model, found, one in _each(models):
        for mode, run in one["modes"].items():
            paper_s = PAPER_S.get((model, one["mbit"]), {})
            rows.append(
                {
                    "model": f"{model}, {found['n_layers']} layers",
                    "primary slower": one["slower"],
                    "Mbit/s": one["mbit"],
                    "offloaded [%]": 100 * {SERIAL: 0.0, SECOND: 1.0}.get(mode, one["offloaded"]),
                    "mode": mode,
                    "median [ms]": spread(run["seconds"]),
                    "of serial": _paired(one, mode, SERIAL),
                    "paper, of serial": paper_s[mode] / paper_s[SERIAL] if mode in paper_s else "-",
                    "WS saves [%]": "-" if mode == "ws" else saved(one, mode),
                    "paper, WS saves [%]": PAPER_SAVED.get((model, one["mbit"]), {}).get(mode, "-"),
                    "planner takes": "{} {} heads {} rows".format(*one["share"]["chosen"]),
                }
            )
    return rows


def explained(models: Models) -> list[dict[str, object]]:
    """The terms of the cost model: the slowest device's compute, and the rest, which is exchange."""
    rows: list[dict[str, object]] = []
    for model, _, one in _each(models):
        for mode, run in one["modes"].items():
            seen, said, least = run["measured"], run["predicted"], run["bound"]
            rows.append(
                {
                    "model": model,
                    "primary slower": one["slower"],
                    "Mbit/s": one["mbit"],
                    "mode": mode,
                    "compute, predicted": said["compute"] * 1e3,
                    "compute, measured": seen["compute"] * 1e3,
                    "compute, alone": least["compute"] * 1e3,
                    "compute, together": run["together"] * 1e3,
                    "exchange, predicted": said["rest"] * 1e3,
                    "exchange, measured": seen["rest"] * 1e3,
                    "bytes / bandwidth": least["exchange"] * 1e3,
                    "layer, predicted": said["layer"] * 1e3,
                    "layer, measured": seen["layer"] * 1e3,
                    "bound": least["layer"] * 1e3,
                    "measured / bound": seen["layer"] / least["layer"],
                }
            )
    return rows


def sweep_rows(models: Models) -> list[dict[str, object]]:
    """One row per mode and bandwidth: the median and the largest relative error over splits."""
    rows: list[dict[str, object]] = []
    for model, found in models.items():
        for mbit in dict.fromkeys(row["Mbit/s"] for row in found["sweep"]):
            for mode in MODES:
                own = [r for r in found["sweep"] if (r["Mbit/s"], r["mode"]) == (mbit, mode)]
                rows.append(
                    {
                        "model": model,
                        "Mbit/s": mbit,
                        "mode": mode,
                        "primary's share: predicted, measured (ms)": "; ".join(map(_beside, own)),
                        "median error": median(map(_error, own)),
                        "largest": max(map(_error, own)),
                        "median error after a run": median(_error(r, "after_a_run_s") for r in own),
                    }
                )
    return rows


def figure_claims(models: Models) -> Iterator[Claim]:
    """[hepti.bound] and [hepti.ws]."""
    over = [
        (run["measured"]["layer"] / run["bound"]["layer"], f"{model} {mode} at {where(one)}")
        for model, _, one in _each(models)
        for mode, run in one["modes"].items()
    ]
    yield Claim(
        "hepti.bound",
        ", ".join(f"{ratio:.2f} {name}" for ratio, name in over),
        "each mode's mean layer, serial and the secondary alone among them, within 1.15 of its bound",
        all(ratio <= BOUND for ratio, _ in over),
        "bound: the slowest device's compute, alone and dilated, plus each point's bytes over the measured "
        "bandwidth",
    )
    for model, _, one in _each(models):
        paper = PAPER_SAVED.get((model, one["mbit"]), {})
        gains = {mode: saved(one, mode) for mode in (SERIAL, "1d", "2d")}
        said = ", ".join(f"{gain:.1f} % over {mode}" for mode, gain in gains.items())
        beside = ", ".join(f"{paper[mode]} % over {mode}" for mode in gains if mode in paper)
        yield Claim(
            "hepti.ws",
            said,
            f"the paper: {beside}" if beside else "above 0; the paper's text gives no number",
            all(gain >= paper.get(mode, 0.0) for mode, gain in gains.items()),
            f"{model} at {where(one)}; {saved(one, SECOND):.1f} % over the secondary alone. {_terms(one)}",
        )


def sweep_claims(models: Models) -> Iterator[Claim]:
    """[hepti.predict]."""
    errors = [_error(row) for found in models.values() for row in found["sweep"]]
    later = [_error(row, "after_a_run_s") for found in models.values() for row in found["sweep"]]
    yield Claim(
        "hepti.predict",
        median(errors),
        "median relative error under 0.15 over modes, splits and bandwidths",
        median(errors) < PREDICT,
        f"{len(errors)} plans; the largest error is {max(errors):.2f}. Once a run of the plan was seen, "
        f"and the picture refreshed by what it showed, the median is {median(later):.2f}",
    )


def _terms(one: Mapping[str, Any]) -> str:
    """The compute and exchange times of the modes' layers."""
    parts = []
    for mode in (SERIAL, SECOND, *MODES):
        run = one["modes"][mode]["measured"]
        parts.append(f"{mode} {run['compute'] * 1e3:.0f} + {run['rest'] * 1e3:.0f}")
    return f"A layer's compute + exchange [ms]: {', '.join(parts)}"


def where(one: Mapping[str, Any]) -> str:
    """The bandwidth and how many times slower the primary is than the secondary."""
    return f"{one['mbit']} Mbit/s, {one['slower']:g} times"


def saved(one: Mapping[str, Any], mode: str) -> float:
    """Percent of `mode`'s time that WS saves, the median of paired runs."""
    return 100 * (1 - _paired(one, "ws", mode))


def _paired(one: Mapping[str, Any], a: str, b: str) -> float:
    runs = one["modes"]
    return median(x / y for x, y in zip(runs[a]["seconds"], runs[b]["seconds"], strict=True))


def _error(row: Mapping[str, Any], which: str = "predicted_s") -> float:
    return float(abs(row[which] / row["measured_s"] - 1))


def _beside(row: Mapping[str, Any]) -> str:
    predicted, measured = (row[f"{which}_s"] * 1e3 for which in ("predicted", "measured"))
    return f"{row['share']:.3g}: {predicted:.0f}, {measured:.0f}"


def _each(models: Models) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    for model, found in models.items():
        for one in found["figure"]:
            yield model, found, one
