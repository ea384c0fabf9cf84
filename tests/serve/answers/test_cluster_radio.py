"""Joules of the radios by which a cluster's devices exchange activations: equations 8 and 9 by hand."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.cluster.lead.predict import Prediction, predict
from pliant.cluster.watch.adapt import Topology
from pliant.errors import NodeError
from pliant.ir.capability import Capability, Interface, Links
from pliant.ir.curve import Curve
from pliant.ir.endpoint import Request, ServiceLevel
from pliant.ir.partition import Partition, Share
from pliant.ir.reply import Reply
from pliant.route.choice.choose_endpoint import CLUSTER, LOCAL, Choice
from pliant.route.choice.energy import LTE, PowerModel, RadioModel
from pliant.route.choice.input_needs import InputNeeds
from pliant.route.choice.objective import ENERGY, Objective
from pliant.route.choice.radio_use import RadioTail
from pliant.route.choice.request_terms import Terms
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from pliant.serve.answers.admission import Admission
from pliant.serve.answers.answer_energy import AnswerEnergy
from pliant.serve.answers.metrics import Metrics
from pliant.serve.answers.session_endpoint import SessionEndpoint
from pliant.serve.node.power import read_energy
from pliant.serve.protocol.pending_request import PendingRequest
from tests.plan.splits import bert
from tests.serve.answers.dispatch_fakes import Endpoint
from tests.serve.answers.test_answer_energy import POWER, clustered, replied
from tests.serve.models import Upper, texts

WLAN = RadioModel("wlan", 0.01, 0.004, 0.3, "by hand", tail_W=0.1, tail_s=0.5)
FLOOR = Terms(accuracy_floor=0.5)
WORKER = PowerModel("w", 0.0, 5.0, "")
N_LAYERS, N_HEADS, HIDDEN = 2, 12, 384


def energy_of(*ends_s: float) -> AnswerEnergy:
    """Of a hub by LTE and a worker by WLAN, whose answers end at these times."""
    clock: Iterator[float] = iter([at for end_s in ends_s for at in (end_s, end_s)])
    radios = RadioTail(LTE), {"w": RadioTail(WLAN)}
    return AnswerEnergy(POWER, (), {"w": WORKER}, *radios, clock=lambda: next(clock))


def test_an_answer_of_a_cluster_counts_the_bytes_the_waiting_and_the_tails_of_its_radios() -> None:
    """By hand: 1,000 bytes go up from the hub, 500 back, from 1.0 s to 3.2 s of a run.

    The second run ends 5 s after the first one, so its exchanges begin 2.8 s after those of the first: within
    the tail of LTE, after that of WLAN.
    """
    energy = energy_of(103.2, 108.2)
    computed_j = 1.5 * 3.0 + 2.0 * 5.0
    hub_j = (0.43839 * 1000 + 0.05197 * 500) / 125_000 + 1.28804 * 2.2
    worker_j = (0.01 * 500 + 0.004 * 1000) / 125_000 + 0.3 * 2.2
    first_j = energy.measure(lambda: replied(clustered())).energy_j
    tails_j = 1.060 * 11.576 + 1.2107 * 0.2601 + 0.1 * 0.5
    assert first_j == pytest.approx(computed_j + hub_j + worker_j + tails_j, rel=1e-9)
    second = energy.measure(lambda: replied(clustered()))
    tails_j = 1.060 * 2.8 + 0.1 * 0.5
    assert second.energy_j == pytest.approx(computed_j + hub_j + worker_j + tails_j, rel=1e-9)
    timed_j = computed_j + (1.28804 + 0.3) * 2.2
    assert energy.timed_j(second) == pytest.approx(timed_j, rel=1e-9)
    assert energy.most_W() == pytest.approx(3.0 + 5.0 + 1.28804 + 0.3)


def test_a_device_without_a_radio_is_connected_by_cable() -> None:
    """The hub's radio alone; and what is not of a cluster uses none of them."""
    energy = AnswerEnergy(POWER, (), {"w": WORKER}, RadioTail(LTE))
    hub, worker = energy.device_work(clustered())
    assert (hub.away_s, hub.radio, worker.radio) == (pytest.approx(2.2), LTE, None)
    assert worker.joules() == pytest.approx(10.0)
    alone = AnswerEnergy(POWER).measure(lambda: replied(clustered()))
    assert alone.energy_j == pytest.approx(4.5)
    assert AnswerEnergy(POWER).timed_j(alone) == alone.energy_j
    local: Reply[Any] = energy.measure(replied)
    assert energy.timed_j(local) == local.energy_j
    only_radios = AnswerEnergy(worker_radios={"w": RadioTail(WLAN)}, clock=lambda: 10.0)
    found = only_radios.measure(lambda: replied(clustered())).energy_j
    assert found == pytest.approx((0.01 * 500 + 0.004 * 1000) / 125_000 + 0.3 * 2.2 + 0.1 * 0.5)


def plan(tokens: int, worker_rows: int, worker_heads: int) -> Prediction:
    """A weight-stationary partition between a hub and its worker."""
    spec = bert(HIDDEN, N_HEADS, 4 * HIDDEN, N_LAYERS)
    shares = Share("hub", N_HEADS - worker_heads, tokens - worker_rows), Share("w", worker_heads, worker_rows)
    devices = {name: Capability(1.0, 1e9, 1 << 30) for name in ("hub", "w")}
    links = Links({name: Interface(1e8, 1e8) for name in ("hub", "w")})
    return predict(spec, Partition("ws", "hub", shares, tokens), Topology(devices, links))


def exchanged_j(tokens: int, worker_rows: int, worker_heads: int) -> float:
    """E_tx0 of the hub and the worker, from Figure 4 of Hepti: float32 activations, without any program.

    The input goes to the worker; in each layer each device needs the other's heads of its own rows, and then
    all rows of the result, the last one only at the hub.
    """
    hub_rows, dim = tokens - worker_rows, HIDDEN // N_HEADS
    there = tokens * HIDDEN + N_LAYERS * worker_rows * (N_HEADS - worker_heads) * dim
    there += (N_LAYERS - 1) * hub_rows * HIDDEN
    back = N_LAYERS * (hub_rows * worker_heads * dim + worker_rows * HIDDEN)
    hub_j = 0.43839 * 4.0 * there + 0.05197 * 4.0 * back
    return (hub_j + 0.01 * 4.0 * back + 0.004 * 4.0 * there) / 125_000


def test_the_bytes_of_a_known_partition_cost_what_equation_9_says() -> None:
    """By length and level, linear in between, and for longer inputs in proportion."""
    alone = predict_alone(8)
    energy = energy_of(0.0)
    found = energy.plan_exchanges([{8: alone, 32: plan(32, 12, 4)}, {32: plan(32, 16, 6)}])
    first, second = found.curves
    assert (first.at(8), first.at(32)) == (0.0, pytest.approx(exchanged_j(32, 12, 4), rel=1e-9))
    assert first.at(20) == pytest.approx(exchanged_j(32, 12, 4) / 2)
    assert second.at(32) == pytest.approx(exchanged_j(32, 16, 6), rel=1e-9)
    assert (second.at(96), second.at(16)) == pytest.approx((3 * second.at(32), second.at(32) / 2))
    levels = tuple(
        ServiceLevel(Curve(((0, seconds),)), accuracy) for seconds, accuracy in ((1.0, 0.8), (2.0, 0.9))
    )
    assert [level.exchange_j for level in found.add_to(levels)] == [first, second]
    assert found.add_to(levels[:1]) == levels[:1], "it plans anew at this moment"
    assert found.tail_j(50.0) == pytest.approx(1.060 * 11.576 + 1.2107 * 0.2601 + 0.1 * 0.5)
    by_cable = AnswerEnergy(POWER).plan_exchanges([{32: plan(32, 12, 4)}])
    assert (by_cable.add_to(levels), by_cable.tail_j(50.0)) == (levels, 0.0)
    assert energy.plan_exchanges([{8: alone}]).radios == (), "the hub alone exchanges nothing"


def predict_alone(tokens: int) -> Prediction:
    one = plan(tokens, 0, 0)
    return predict(bert(HIDDEN, N_HEADS, 4 * HIDDEN, N_LAYERS), one.partition.on_device("hub"), one.topology)


amount = st.floats(0.01, 10.0)


@given(
    amount,
    amount,
    amount,
    amount,
    st.lists(st.tuples(amount, st.one_of(st.just(0.0), amount)), min_size=2, max_size=2),
    st.sampled_from([ENERGY, Objective(0.5, 0.5), Objective(0.9, 0.1)]),
    st.integers(0, 100),
)
def test_the_least_energy_is_chosen_with_the_radios_counted(
    own_s: float,
    own_W: float,
    cluster_W: float,
    tail_j: float,
    parts: list[tuple[float, float]],
    objective: Objective,
    n: int,
) -> None:
    """Brute force over the device and the two levels of a cluster, equally accurate, by eq. 8 and 9."""
    node = Router("node", RouterSettings(100, power=PowerModel("here", 0.0, own_W, "")))
    node.offer((ServiceLevel(Curve(((0, own_s),)), 0.9),))
    node.add_endpoint(CLUSTER, watts=cluster_W)
    levels = [
        ServiceLevel(Curve(((0, seconds),)), 0.9, exchange_j=Curve(((0, joules), (100, 3 * joules))))
        for seconds, joules in parts
    ]
    node.offer(tuple(levels), CLUSTER)
    node.set_wait(0.0, 0.0, CLUSTER, InputNeeds(tail_j=tail_j))
    cost = {(LOCAL, 0): objective.per_second * own_s + objective.per_joule * own_s * own_W}
    for i, (seconds, joules) in enumerate(parts):
        bytes_j = joules * (1 + 2 * n / 100)
        spent_j = cluster_W * seconds + (bytes_j + tail_j if bytes_j else 0.0)
        cost[CLUSTER, i] = objective.per_second * seconds + objective.per_joule * spent_j
    chosen: Choice = node.choose(n, 0.0, objective, terms=FLOOR)
    assert chosen.option.cost == pytest.approx(min(cost.values()))
    for option in (chosen.option, *chosen.runners_up):
        own = [c for (name, _), c in cost.items() if name == option.name]
        assert option.cost == pytest.approx(min(own))


class Split(Endpoint):
    """A cluster's session that answers as `clustered` says, by one plan."""

    def __init__(self) -> None:
        super().__init__("", 2.0)
        self.planned_levels = SimpleNamespace(planned=[{32: plan(32, 12, 4)}])

    def answer(self, request: Request) -> Reply[Any]:
        return replace(replied(clustered()), length=request.length, seconds=1.0)


def test_an_endpoint_offers_the_joules_of_its_plans_and_learns_the_power_of_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes and tails are not in proportion to time: with them in the power, they would count twice."""
    now_s, recorded = 103.2, list[float]()
    energy = replace(energy_of(), clock=lambda: now_s)
    router = Router("here", RouterSettings(1000, power=POWER))

    def record(n: int, seconds: float, at_s: float, name: str = LOCAL, joules: float | None = None) -> None:
        assert joules is not None
        recorded.append(joules)

    monkeypatch.setattr(router, "record_local_answer", record)

    async def ask() -> float | None:
        served, admission = Split(), Admission(8, lambda: now_s)
        endpoint = SessionEndpoint(
            served, router, admission, Metrics(), lambda: None, lambda: now_s, energy=energy
        )
        try:
            endpoint.offer()
            (here,) = router.ways_here
            full_j = 1.060 * 11.576 + 1.2107 * 0.2601 + 0.1 * 0.5
            assert here.joules(32, 0.0) == pytest.approx(exchanged_j(32, 12, 4) + full_j)
            request = served.request({"text": texts("x" * 32)})
            reply = await endpoint.answer(PendingRequest(request))
            (here,) = router.ways_here
            assert here.joules(32, 0.0) == pytest.approx(exchanged_j(32, 12, 4)), "both radios are on now"
            return reply.result.energy_j
        finally:
            await asyncio.to_thread(admission.close)

    spent_j = asyncio.run(ask())
    timed_j = 1.5 * 3.0 + 2.0 * 5.0 + (1.28804 + 0.3) * 2.2
    assert recorded == [pytest.approx(timed_j)]
    assert spent_j is not None
    assert spent_j > timed_j + 1.060 * 11.576


def test_radios_are_read_by_name() -> None:
    """`--cluster-radio lte --worker-radio NAME=lte`; a model is taken as it is."""
    found = read_energy("1.5", {}, Upper(), "lte", {"w": WLAN, "v": "lte"})
    assert found.radio is not None
    assert (found.radio.model, found.worker_radios["w"].model) == (LTE, WLAN)
    assert found.worker_radios["v"].model == LTE
    with pytest.raises(NodeError, match="'umts' is not a known radio"):
        read_energy(None, {}, Upper(), None, {"w": "umts"})
