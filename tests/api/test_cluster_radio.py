"""A session over this device and a cluster by radio: what answers take, and which endpoint takes less."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import pliant
from pliant.api.open_cluster import Cluster
from pliant.cluster.net.key import new_key
from pliant.ir.dilation import Dilation
from pliant.ir.program import Compute, Exchange
from pliant.route.choice.energy import LTE, RadioModel
from pliant.serve.node.routing import Routing
from tests.api.test_open_routed import TEXTS
from tests.cluster.processes import PATIENT, WAIT_S, workers
from tests.cluster.test_clustered import write_key
from tests.serve.test_routing import until

WATTS = {"hub": 3.0, "a": 7.0}
RADIOS = {
    "hub": replace(LTE.without_tail(), up_J_per_Mbit=20.0, down_J_per_Mbit=6.0),
    "a": RadioModel("wlan", 0.5, 0.2, 0.3, "by hand"),
}
"""Transfers take ten times the joules that a slow machine computes with, and fewer than all of it here."""
DEAR = replace(LTE, up_J_per_Mbit=1e6)


def test_joules_of_a_cluster_include_its_radios_and_decide_with_them(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """By each device's seconds and bytes of the run; and a radio that costs too much keeps inputs here."""
    source = str(tiny_model("bert", n_layers=4, widths=(2, 4)))
    key = write_key(tmp_path / "key", new_key())
    with (
        Cluster("127.0.0.1:0", name="hub", key=key, threads=1, patience=PATIENT, shares="equal") as cluster,
        workers(cluster.address, key, source, tmp_path, "a"),
    ):
        cluster.wait(1, WAIT_S)
        estimates = []
        for radio, endpoint in ((None, "cluster"), (RADIOS["hub"], "cluster"), (DEAR, "local")):
            routing = Routing(
                objective="energy",
                power=f"{WATTS['hub']}",
                worker_power={"a": f"{WATTS['a']}"},
                cluster_radio=radio,
                worker_radio={} if radio is None else {"a": RADIOS["a"]},
            )
            dilation = Dilation(compute=300.0)
            options = {"threads": 1, "preload": "100MB", "cluster": cluster, "routing": routing}
            with pliant.open(source, dilation=dilation, **options) as session:  # type: ignore[arg-type]
                until(lambda session=session, wanted=endpoint: session(TEXTS[0]).endpoint == wanted)  # type: ignore[misc]
                reply = session(TEXTS[0])
                assert reply.endpoint == endpoint
                rows = {row.target: row for row in session.explain(reply.length).candidates}
                estimates.append(rows["cluster"].energy_j)
            if endpoint == "cluster":
                run = reply.details.details
                used = {} if radio is None else RADIOS
                assert reply.energy_j == pytest.approx(spent_j(run.program.steps, run.spans, used), rel=1e-9)
        (program,) = {run.program}
        exchanges = [s.work for s in program.steps if isinstance(s.work, Exchange)]
        dear_j = 1e6 * sum(x.n_bytes for x in exchanges if x.src == "hub") / 125_000
        assert estimates[-1] == pytest.approx(dear_j, rel=0.05), "the planned bytes, of about this length"
        transfers_j = sum(
            (RADIOS[x.src].up_J_per_Mbit + RADIOS[x.dst].down_J_per_Mbit) * x.n_bytes / 125_000
            for x in exchanges
        )
        assert estimates[0] < 0.95 * transfers_j < estimates[1] < estimates[2]


def spent_j(steps, spans, radios) -> float:  # type: ignore[no-untyped-def]
    """Eq. 8 and 9 over all devices, step by step."""
    joules, away = 0.0, {device: [] for device in radios}  # type: ignore[var-annotated]
    for step, span in zip(steps, spans, strict=True):
        match step.work:
            case Compute(device=device):
                joules += WATTS[device] * (span.end_s - span.start_s)
            case Exchange(src=src, dst=dst, n_bytes=n_bytes) if radios:
                joules += radios[src].up_J_per_Mbit * n_bytes / 125_000
                joules += radios[dst].down_J_per_Mbit * n_bytes / 125_000
                for device in (src, dst):
                    away[device] += [span.start_s, span.end_s]
    return joules + sum(radios[device].waiting_W * (max(at) - min(at)) for device, at in away.items())
