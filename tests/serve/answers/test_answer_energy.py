"""Joules of answers: by the device's counters, by powers, by what each device of a cluster did."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pliant.errors import NodeError
from pliant.ir.cost import Span
from pliant.ir.partition import Partition, Share
from pliant.ir.program import Compute, Exchange, Program, Segment, Step
from pliant.ir.reply import Reply
from pliant.route.choice.energy import LTE, PowerModel
from pliant.serve.answers.answer_energy import AnswerEnergy
from pliant.serve.node.power import read_energy
from pliant.system import EnergyMeter
from tests.serve.models import Upper
from tests.serve.nodes import Running, asking, fixed, running
from tests.serve.test_routing import HONEST, LATE, metric, route, target_of, until

POWER = PowerModel("this device", 2.0, 3.0, "")


def replied(details: Any = None) -> Reply[Any]:
    return Reply({}, "here", 0.0, details)


def test_counters_are_taken_over_what_the_device_draws_idle(tmp_path: Path) -> None:
    """10 J while it answers, of which idling takes next to nothing; the counter starts anew."""
    file = tmp_path / "energy_uj"
    file.write_text("4000000")

    def answer() -> Reply[Any]:
        file.write_text("3000000")
        return replied()

    found = AnswerEnergy(POWER, (EnergyMeter("rapl", file, 11_000_000),)).measure(answer)
    assert found.energy_j is not None
    assert 10.0 - 2.0 * 60.0 < found.energy_j <= 10.0  # less what it drew idle meanwhile, whatever that took
    idle = AnswerEnergy(POWER, (EnergyMeter("rapl", file, None),)).measure(replied)
    assert idle.energy_j == 0.0, "less than idling is nothing"


def test_where_counters_cannot_be_read_the_model_says(tmp_path: Path) -> None:
    """They are root's on many machines, and may become so while a node runs."""
    gone = EnergyMeter("rapl", tmp_path / "gone", None)
    found = AnswerEnergy(POWER, (gone,)).measure(replied)
    assert found.energy_j is not None
    assert 0.0 < found.energy_j < 3.0 * 60.0
    assert AnswerEnergy().measure(replied).energy_j is None


@dataclass(frozen=True)
class Details:
    """What a run over two devices left."""

    partitions: tuple[Partition, ...]
    program: Program
    spans: tuple[Span, ...]


def clustered() -> Details:
    """The hub computes 1 s and 0.5 s, its worker 2 s beside it; 1,000 bytes go there, 500 come back."""
    steps = (
        Step("hub/cpu", Compute("input", rows=8, device="hub")),
        Step("net:hub->w", Exchange("x", 1000, "hub", "w"), (0,)),
        Step("w/cpu", Compute("layer", 0, 4, 8, "w"), (1,)),
        Step("hub/cpu", Compute("layer", 0, 2, 8, "hub"), (0,)),
        Step("net:w->hub", Exchange("y", 500, "w", "hub"), (2,)),
    )
    times = ((0.0, 1.0), (1.0, 1.1), (1.1, 3.1), (1.0, 1.5), (3.1, 3.2))
    spans = tuple(Span(i, step.lane, *at) for i, (step, at) in enumerate(zip(steps, times, strict=True)))
    partition = Partition("ws", "hub", (Share("hub", 2, 8, 0), Share("w", 4, 0, 0)), 8)
    return Details((partition,), Program((Segment(steps),), (), ()), spans)


def test_a_clusters_joules_are_counted_device_by_device() -> None:
    """By hand: seconds of each device times its watts; who is not named counts none."""
    worker = PowerModel("w", 0.0, 5.0, "")
    for energy, expected_j in (
        (AnswerEnergy(POWER, (), {"w": worker}), 1.5 * 3.0 + 2.0 * 5.0),
        (AnswerEnergy(POWER), 1.5 * 3.0),
        (AnswerEnergy(None, (), {"w": worker}), 2.0 * 5.0),
    ):
        found = energy.measure(lambda: replied(clustered()))
        assert found.energy_j == pytest.approx(expected_j)
    works = AnswerEnergy(POWER).device_work(clustered())
    assert [(work.busy_s, work.sent_bytes, work.received_bytes) for work in works] == [
        (pytest.approx(1.5), 1000, 500),
        (pytest.approx(2.0), 500, 1000),
    ]
    assert AnswerEnergy(POWER, (), {"w": worker}).most_W() == 8.0


def test_watts_of_workers_are_numbers() -> None:
    """`--worker-power NAME=WATTS`."""
    assert read_energy("1.5", {"hub": "4"}, Upper()).workers["hub"].compute_W == 4.0
    assert read_energy(POWER, {}, Upper()) == AnswerEnergy(POWER)
    with pytest.raises(NodeError, match="for hub a power of 'much'"):
        read_energy(None, {"hub": "much"}, Upper())


def parameters(node: Running, **more: Any) -> dict[str, Any]:
    response = node.post("x", **more)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json().get("parameters", {})
    return found


def test_samples_that_a_node_times_are_no_joules_of_answers() -> None:
    """50 J were counted before the first request."""
    with running(Upper(), energy=AnswerEnergy(POWER), learn_s=1e-9) as node:
        assert metric(node, 'pliant_joules_total{target="local"}') == 0.0
        mine = parameters(node)["energy_j"]
        assert metric(node, 'pliant_joules_total{target="local"}') == pytest.approx(mine)


def test_an_answer_says_what_it_took_of_the_device_where_it_started() -> None:
    """By its own power or its radio; a node above counts none for those below (CRIME 4.4)."""
    with running(Upper(mark="@up"), name="up", energy=AnswerEnergy(POWER), **fixed(*HONEST)) as up:
        mine = parameters(up)["energy_j"]
        assert 0.0 < mine < 60.0 * 3.0
        assert metric(up, 'pliant_joules_total{target="local"}') == pytest.approx(mine)
        passed_on = {"headers": route(path=("below",), hops_left=2, sender="below")}
        assert "energy_j" not in parameters(up, **passed_on)
        options = {"energy": AnswerEnergy(POWER), **fixed(*LATE, radio=LTE)}
        with running(Upper(mark="@end"), name="end", upstreams=(up.url,), **options) as end:
            until(lambda: target_of(end, 1) == up.url)
            joules = parameters(end)["energy_j"]
            assert joules > LTE.transfer_j(len(asking("x")), 1)
            first = f'pliant_joules_total{{target="{up.url}"}}'
            assert metric(end, first) == pytest.approx(joules)
    with running(Upper(), name="plain") as plain:
        assert "energy_j" not in parameters(plain)
