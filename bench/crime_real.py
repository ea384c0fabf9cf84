"""`crime.real`: three real nodes compared with the simulator, input by input, over links that follow a RIPE
series.

DAG B: an end node, a gateway and a cloud, each a process in its own namespace, dilated so that the end node
and the gateway break even at about four words, gateway and cloud at about eleven (CRIME, Figure 3). Inputs
have SNLI's lengths and come one after another. The link to the cloud has the round trips of three hours of a
RIPE Atlas series (100 to 245 ms), each row for an equal part of the inputs; round trips are not shortened.
The simulator gets the same inputs and series, and only device data measured before the run, on other inputs:
a line for each device, and HTTP's time on each hop. It uses no time of the run that it predicts.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, final

import numpy as np

import checkout  # noqa: F401 - research and testbed lie there
from crime_nodes import DATA, NodeClient, check_bed, traces
from pliant.ir.curve import Curve, line
from pliant.ir.link import Link
from pliant.ir.times.fit import robust_fit
from pliant.route.node_messages import RouteMessage, encode_route
from pliant.route.router_settings import RouterSettings
from report import Report, options
from research.oracle import oracle
from research.series import LinkSeries, Window, constant, windows
from research.simulate import simulate
from research.world import Device, Edge, Sizes, World, draw
from testbed import DeviceSpec, rate
from testbed.inside import inside
from testbed.nodes import Execution, NodeBed, open_nodes

SOURCE, MODEL = "random:cove-300", "random-cove-300"
NAMES = ("end", "gateway", "cloud")
SLOWER = (100.0, 50.0, 2.0)
NEAR_RTT_S = 0.08
LINK = "100Mbit"
HOURS, ROW_S = 3.0, 240.0
LOW_S, HIGH_S = 0.1, 0.245
N_INPUTS, N_QUICK = 400, 60
LENGTHS = (2, 4, 6, 8, 12, 16, 24)
WARM = (8, 40)
N_WARM = 12
RUN = "input"
"""The prefix of the ids of the run's inputs."""
MARGIN = 0.1
_HERE = encode_route(RouteMessage(path=("bench",), hops_left=0))
_BINARY = [{"name": "vector", "parameters": {"binary_data": True}}]


def window() -> Window:
    """The three-hour window within 100 to 245 ms with the largest spread of round trips."""
    found = [w for trace in traces() for w in windows(trace, HOURS * 3600.0, LOW_S, HIGH_S)]
    return max(found, key=lambda w: w.spread_s)


def lengths(count: int, seed: int) -> list[int]:
    """Words of SNLI's premises and hypotheses, drawn with replacement."""
    words = []
    for row in (DATA / "snli" / "snli_1k.txt").read_text().splitlines():
        words += [len(text.split()) for text in row.split("\t")[1:3]]
    return [int(n) for n in np.random.default_rng(seed).choice(words, count)]


@dataclass(frozen=True, slots=True)
class RealRun:
    """A run of real nodes: seconds and executing device by input, all executions, HTTP times.

    `http_s` is the time of a request beyond computation: at the end node, and the addition of each hop.
    """

    seconds: list[float]
    targets: list[int]
    executed: dict[str, list[Execution]]
    http_s: tuple[float, float, float]


@final
class _Rig:
    def __init__(self, bed: NodeBed, first_rtt_s: float) -> None:
        self._bed, self._rtt_s = bed, 0.0
        self._follow(first_rtt_s)

    def measure(self, inputs: Sequence[int], series: LinkSeries) -> RealRun:
        self._time_alone()
        first = series.at(0.0, 0.0)
        assert first is not None
        took: dict[str, float] = {}
        with inside(self._bed.network["end"]):
            asker = NodeClient(self._bed, MODEL, "end")
            for i in range(N_WARM):
                took |= {f"warm{i}-{n}": _ask(asker, f"warm{i}-{n}", n) for n in WARM}
                took[f"here{i}"] = _ask(asker, f"here{i}", 4, _HERE)
            seconds = []
            for i, n in enumerate(inputs):
                link = series.at(0.0, i / len(inputs))
                assert link is not None
                self._follow(link.latency_s)
                seconds.append(_ask(asker, f"{RUN}{i}", n))
            asker.close()
        executed = {name: self._bed.executed(name) for name in NAMES}
        where = {e.id: (k, e.seconds) for k, name in enumerate(NAMES) for e in executed[name]}
        targets = [where[f"{RUN}{i}"][0] for i in range(len(inputs))]
        return RealRun(seconds, targets, executed, _http(took, where, first.latency_s))

    def _time_alone(self) -> None:
        """Run some inputs on each device, to measure its line."""
        for name in NAMES:
            with inside(self._bed.network[name]):
                asker = NodeClient(self._bed, MODEL, name)
                for turn in range(3):
                    for n in LENGTHS:
                        _ask(asker, f"{name}{turn}-{n}", n, _HERE)
                asker.close()

    def _follow(self, rtt_s: float) -> None:
        if rtt_s != self._rtt_s:
            self._bed.network.set_delay("cloud", rtt_s / 2.0)
            self._rtt_s = rtt_s


def _ask(asker: NodeClient, id: str, n: int, route: str | None = None) -> float:
    ids = {"name": "ids", "shape": [1, n], "datatype": "INT64", "data": list(range(n))}
    return asker.ask(id, [ids], _BINARY, route).seconds


def _http(
    took: dict[str, float], where: dict[str, tuple[int, float]], rtt_s: float
) -> tuple[float, float, float]:
    """Median times minus round trips and computation, by executing device."""
    rest: tuple[list[float], list[float], list[float]] = ([], [], [])
    for id, seconds in took.items():
        device, spent_s = where[id]
        rest[device].append(seconds - spent_s - (0.0, NEAR_RTT_S, NEAR_RTT_S + rtt_s)[device])
    here, once, twice = (median(r) if r else 0.0 for r in rest)
    once = once if rest[1] else (here + twice) / 2.0
    return here, max(once - here, 0.0), max(twice - once, 0.0)


def series_of(chosen: Window) -> LinkSeries:
    """The window's rows, each for an equal part of the inputs."""
    links = chosen.series(rate(LINK)).links
    return LinkSeries(tuple(i / len(links) for i in range(len(links))), links, of="inputs")


def run(inputs: Sequence[int], series: LinkSeries) -> RealRun:
    """The real nodes' run."""
    specs = [
        DeviceSpec(device, slower=slower, bandwidth_Bps=rate(LINK), delay_s=delay_s)
        for device, slower, delay_s in zip(NAMES, SLOWER, (NEAR_RTT_S / 2.0, None, 0.0), strict=True)
    ]
    with ExitStack() as ends:
        folder = Path(ends.enter_context(TemporaryDirectory()))
        upstreams = {"end": ["gateway"], "gateway": ["cloud"]}
        bed = ends.enter_context(open_nodes(specs, upstreams, SOURCE, folder))
        first = series.links[0]
        assert first is not None
        return _Rig(bed, first.latency_s).measure(inputs, series)


def world(measured: RealRun, series: LinkSeries) -> World:
    """The simulator's input: fitted lines, and the series plus HTTP's time on each hop."""
    _, near_s, far_s = measured.http_s
    far = tuple(
        None if link is None else Link(link.latency_s + far_s, link.bandwidth_Bps) for link in series.links
    )
    edges = (
        Edge("end", "gateway", constant(Link(NEAR_RTT_S + near_s, rate(LINK)))),
        Edge("gateway", "cloud", LinkSeries(series.starts, far, of="inputs")),
    )
    devices = tuple(Device(name, fitted(measured.executed[name])) for name in NAMES)
    return World(devices, edges, Sizes(0, 0, 0, 0))


def fitted(executed: Sequence[Execution]) -> Curve:
    """The line through a device's executions before the run, fitted as in nodes."""
    before = [e for e in executed if not e.id.startswith(RUN)]
    fit, _ = robust_fit([e.length for e in before], [e.seconds for e in before])
    return line(fit.constant_s, fit.linear_s, 512)


def ways(here: World, inputs: Sequence[int]) -> np.ndarray:
    """Seconds of each input on each device, by the lines and the series: [inputs, devices]."""
    rows = []
    for i, n in enumerate(inputs):
        links = [edge.series.at(0.0, i / len(inputs)) for edge in here.edges]
        rtts = np.cumsum([0.0, *(link.latency_s for link in links if link is not None)])
        rows.append([rtt + device.curve.at(n) for rtt, device in zip(rtts, here.devices, strict=True)])
    return np.array(rows)


def main() -> None:
    opts = options(__doc__ or "", _own_options)
    check_bed()
    chosen = window()
    count = N_QUICK if opts.quick else N_INPUTS
    report = Report(
        "crime_real", f"{SOURCE}, {count} inputs of SNLI's lengths, DAG B as three processes", opts
    )
    series, inputs = series_of(chosen), lengths(count, 0)
    measured = _kept(opts.keep, lambda: run(inputs, series))
    here = world(measured, series)
    drawn = draw(here, inputs, 0)
    settings = RouterSettings(max(512, *inputs))
    simulated = simulate(here, drawn, settings)
    best = oracle(here, drawn)
    times = ways(here, inputs)
    ranked = np.sort(times, axis=1)
    clear = ranked[:, 1] / ranked[:, 0] - 1.0 > MARGIN
    real = np.array(measured.targets)
    same = real == simulated.targets
    http_s = count * measured.http_s[0]
    report.table("Inputs by device", [_shares("real nodes", real), _shares("simulator", simulated.targets)])
    report.table("Agreement", _agreement(ranked, same))
    total_s, predicted_s = sum(measured.seconds), simulated.seconds + http_s
    report.table(
        "Total time",
        [
            {
                "who": "real nodes, at the client",
                "seconds": total_s,
                "to the simulator": total_s / predicted_s,
            },
            {"who": "simulator", "seconds": predicted_s, "to the simulator": 1.0},
            *(_alone(name, times[:, k].sum() + http_s, predicted_s) for k, name in enumerate(NAMES)),
            {
                "who": "oracle",
                "seconds": best.seconds + http_s,
                "to the simulator": (best.seconds + http_s) / predicted_s,
            },
        ],
    )
    report.table(
        "Lines", [_line(d, measured.executed[d.name], s) for d, s in zip(here.devices, SLOWER, strict=True)]
    )
    report.note(_told(chosen, measured))
    share, ratio = float(same[clear].mean()), total_s / predicted_s
    report.claim(
        "crime.real",
        f"{100 * share:.1f} % of choices, total {100 * (ratio - 1):+.2f} %",
        "the simulator's choice for 95 % of the inputs with a margin above 10 %, total time within 2 %",
        share >= 0.95 and abs(ratio - 1.0) <= 0.02,
        f"{int(clear.sum())} of {count} inputs have such a margin; of all {100 * same.mean():.1f} % agree; "
        "the simulator knows no time of the run",
    )
    report.finish()


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="the file of a measured run, read or written"
    )


def _kept(keep: Path | None, measure: Callable[[], RealRun]) -> RealRun:
    if keep is not None and keep.exists():
        found = json.loads(keep.read_text())
        executed = {name: [Execution(**e) for e in rows] for name, rows in found["executed"].items()}
        here_s, near_s, far_s = found["http_s"]
        return RealRun(found["seconds"], found["targets"], executed, (here_s, near_s, far_s))
    measured = measure()
    if keep is not None:
        keep.write_text(json.dumps(asdict(measured)))
    return measured


def _shares(who: str, targets: np.ndarray) -> dict[str, Any]:
    return {"who": who, **{name: int((targets == k).sum()) for k, name in enumerate(NAMES)}}


def _agreement(ranked: np.ndarray, same: np.ndarray) -> list[dict[str, Any]]:
    margins = ranked[:, 1] / ranked[:, 0] - 1.0
    rows = []
    for low, high in ((0.0, 0.05), (0.05, 0.1), (0.1, 0.2), (0.2, 0.5), (0.5, np.inf)):
        mine = (margins >= low) & (margins < high)
        rows.append(
            {
                "margin": f"{100 * low:.0f} to {100 * high:.0f} %"
                if high < np.inf
                else f"over {100 * low:.0f} %",
                "inputs": int(mine.sum()),
                "same choice": int(same[mine].sum()),
            }
        )
    return rows


def _alone(name: str, seconds: float, predicted_s: float) -> dict[str, Any]:
    return {
        "who": f"all on {name}",
        "seconds": float(seconds),
        "to the simulator": float(seconds / predicted_s),
    }


def _line(device: Device, executed: Sequence[Execution], slower: float) -> dict[str, Any]:
    ratios = [e.seconds / max(device.curve.at(e.length), 1e-9) for e in executed]
    return {
        "device": device.name,
        "dilation": slower,
        "executed": len(executed),
        "T(4) [ms]": 1e3 * device.curve.at(4),
        "T(11) [ms]": 1e3 * device.curve.at(11),
        "measured to line, mean": mean(ratios),
        "spread": float(np.std(ratios)),
    }


def _told(chosen: Window, measured: RealRun) -> str:
    here, near, far = (f"{1e3 * s:.1f}" for s in measured.http_s)
    return (
        f"RIPE Atlas series {chosen.trace.name}, three hours from "
        f"{chosen.trace.begins:%Y-%m-%d} + {chosen.trace.times_s[chosen.first] / 3600:.1f} h: of all such "
        f"windows within 100 to 245 ms the one with the widest spread, {1e3 * chosen.spread_s:.0f} ms. "
        f"Beyond computation, a request takes {here} ms at the end node, {near} ms more for the hop to the "
        f"gateway and {far} ms for the one to the cloud (medians before the run): HTTP's time, an input of "
        "the simulator."
    )


if __name__ == "__main__":
    main()
