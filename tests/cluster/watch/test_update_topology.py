"""A picture that follows what segments show."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pliant.cluster.control.messages import Note
from pliant.cluster.lead.predict import Prediction, layer_seconds, predict
from pliant.cluster.watch.adapt import Topology
from pliant.cluster.watch.update_topology import UnconfirmedRatios, restore_measured_links, update_topology
from pliant.ir.capability import Capability, ClusterCost, Drift, Interface, Links
from pliant.ir.cost import simulate
from pliant.ir.link import Link
from pliant.ir.partition import Mode, Partition, Share
from pliant.ir.program import Compute, Exchange, value
from tests.plan.splits import bert

SPEC, TOKENS = bert(), 16


def solved(mode: Mode, topology: Topology) -> Prediction:
    half = SPEC.n_heads // 2, TOKENS // 2, 0 if mode == "ws" else SPEC.ffn // 2
    others = SPEC.n_heads - half[0], TOKENS - half[1], 0 if mode == "ws" else SPEC.ffn - half[2]
    return predict(
        SPEC, Partition(mode, "p", (Share("p", *half), Share("a", *others)), TOKENS), topology, "fp32"
    )


def topology(slower: float = 1.0, bandwidth_Bps: float = 1e8, latency_s: float = 0.0) -> Topology:
    """Two devices; of the second every kind of stage, of both modes, takes so many times longer."""
    device = Capability(1.0, 1e9, 1 << 30)
    late = replace(device, drifts=tuple(Drift(kind, slower) for kind in kinds()))
    links = Links({name: Interface(bandwidth_Bps, bandwidth_Bps) for name in "pa"}, latency_s)
    return Topology({"p": device, "a": late}, links)


def kinds() -> list[str]:
    """Names of all stages of both modes."""
    device = Capability(1.0, 1e9, 1 << 30)
    known = Topology(dict.fromkeys("pa", device), Links({n: Interface(1e8, 1e8) for n in "pa"}))
    steps = [s for mode in ("ws", "1d") for s in solved(mode, known).layer.steps]  # type: ignore[arg-type]
    return sorted({step.work.kernel for step in steps if isinstance(step.work, Compute)})


def told(plan: Prediction, truth: Topology) -> Mapping[str, Note]:
    """What the devices say of a layer of `plan` where the world is `truth`."""
    spans = simulate(plan.layer, ClusterCost(truth.capabilities, truth.links, plan.cost.flops))
    ran: dict[str, dict[str, float]] = {"p": {}, "a": {}}
    came: dict[str, dict[str, tuple[int, float]]] = {"p": {}, "a": {}}
    for step, span in zip(plan.layer.steps, spans, strict=True):
        match step.work:
            case Compute(device=name, kernel=kind):
                ran[name][kind] = ran[name].get(kind, 0.0) + span.seconds
            case Exchange(src=src, dst=dst) as exchange:
                n_bytes, seconds = came[dst].get(src, (0, 0.0))
                came[dst][src] = n_bytes + value(exchange.n_bytes, {}), seconds + span.seconds
    return {name: Note(0.0, 0, ran[name], came[name]) for name in ran}


def after(plans: list[Prediction], truth: Topology, layers: int) -> Topology:
    """The picture of the first plan after so many layers, by the plans in turns."""
    now = plans[0].topology
    left: UnconfirmedRatios = {}
    for i in range(layers):
        plan = plans[i % len(plans)]
        now, left = update_topology(now, left, plan, told(plan, truth), {})
    return now


@pytest.mark.parametrize("mode", ["ws", "1d"])
@pytest.mark.parametrize("slower", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("bandwidth_Bps", [1e7, 1e8, 3e8])
def test_the_price_of_a_layer_becomes_what_it_takes_and_stays(
    mode: Mode, slower: float, bandwidth_Bps: float
) -> None:
    """Each layer is held against the picture as it is by then: against the plan's, it would count again."""
    truth = topology(slower, bandwidth_Bps)
    plan = solved(mode, topology())
    true_s = layer_seconds(plan, truth)
    for layers in (8, 24, 200):
        assert layer_seconds(plan, after([plan], truth, layers)) == pytest.approx(true_s, rel=0.05)


def test_a_mode_that_never_ran_drifts_no_further_the_longer_the_other_runs() -> None:
    """Its stages are taken to drift as those that ran; how often that was seen is nothing to them."""
    truth, plan, other = topology(slower=3.0), solved("ws", topology()), solved("1d", topology())
    true_s = layer_seconds(other, truth)
    for layers in (8, 24, 200):
        assert layer_seconds(other, after([plan], truth, layers)) == pytest.approx(true_s, rel=0.1)


def test_modes_in_turns_do_not_drive_each_other_off() -> None:
    """What runs in one mode shows moves the other's stages too, which then must come back."""
    truth = topology(slower=2.0, bandwidth_Bps=3e7)
    plans = [solved("ws", topology()), solved("1d", topology())]
    now = after(plans, truth, 100)
    for plan in plans:
        assert layer_seconds(plan, now) == pytest.approx(layer_seconds(plan, truth), rel=0.15)


def test_a_round_trip_that_outweighs_the_bytes_does_not_run_away() -> None:
    """Small layers (MobileBERT's): what a byte takes is mostly waiting, and only the bandwidth is moved."""
    truth, plan = topology(latency_s=4e-3), solved("ws", topology(latency_s=1e-3))
    true_s = layer_seconds(plan, truth)
    assert layer_seconds(plan, after([plan], truth, 24)) <= true_s
    now = after([plan], truth, 200)
    assert now.links.link("p", "a").bandwidth_Bps > 1e8 / 5


def test_links_of_who_was_not_heard_of_are_as_they_were_measured() -> None:
    """Its interface and what joins it to others; between others all stays as runs showed it."""
    fast, slow = Interface(1e8, 1e8), Interface(1e6, 1e6)
    names = ("p", "a", "b")
    measured = Links(dict.fromkeys(names, fast), 1e-3, {("p", "a"): Link(2e-3, 5e7)})
    seen = Links(dict.fromkeys(names, slow), 1e-3, {("p", "b"): Link(1e-3, 1e5), ("a", "b"): Link(1e-3, 1e5)})
    again = restore_measured_links(seen, measured, {"a"})
    assert again.interfaces == {"p": slow, "a": fast, "b": slow}
    assert again.pairs == {("p", "a"): Link(2e-3, 5e7), ("p", "b"): Link(1e-3, 1e5)}
    assert restore_measured_links(seen, measured, set()) == seen


def test_who_left_does_not_come_back_with_what_was_measured() -> None:
    """Links are of who is here: what joined the others to who left is of no use."""
    fast = Interface(1e8, 1e8)
    measured = Links(dict.fromkeys("pab", fast), 1e-3, {("p", "b"): Link(2e-3, 5e7)})
    here = Links(dict.fromkeys("pa", fast), 1e-3, {("p", "a"): Link(1e-3, 1e5)})
    assert restore_measured_links(here, measured, {"p", "a"}) == Links(dict.fromkeys("pa", fast), 1e-3)
