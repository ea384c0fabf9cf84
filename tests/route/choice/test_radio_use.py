"""A radio's joules, exchange by exchange, beside its states played second by second."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.ir.curve import line
from pliant.ir.link import Link
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.choice.energy import LTE, PowerModel, RadioModel
from pliant.route.choice.objective import ENERGY
from pliant.route.choice.radio_use import RadioUse
from pliant.route.curve_advert import CurveAdvert
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from tests.route.routers import only

CELL_S = 1 / 64
RADIO = RadioModel("made up", 0.0, 0.0, 1.5, "", tail_W=0.75, tail_s=64 * CELL_S, wake_W=2.0, wake_s=0.25)
WAY = Candidate("up", only(line(0.0, 0.0, 10)), watts=RADIO.waiting_W)


def played_j(exchanges: Sequence[tuple[int, int]], radio: RadioModel = RADIO) -> float:
    """The radio's states, cell by cell of CELL_S: on, in the tail, asleep; (begin, end) are in cells.

    numpy, by the definition of the states: it knows nothing of exchanges that share anything.
    """
    tail = round(radio.tail_s / CELL_S)
    n = max(end for _, end in exchanges) + tail + 1
    is_on, in_tail = np.zeros(n, bool), np.zeros(n, bool)
    for begin, end in exchanges:
        is_on[begin:end] = True
        in_tail[end : end + tail] = True
    is_awake = is_on | in_tail
    n_wakings = int(is_awake[0]) + int((is_awake[1:] & ~is_awake[:-1]).sum())
    in_tail &= ~is_on
    on_j = radio.waiting_W * CELL_S * is_on.sum()
    return float(on_j + radio.tail_W * CELL_S * in_tail.sum() + radio.wake_W * radio.wake_s * n_wakings)


def used_j(exchanges: Sequence[tuple[int, int]]) -> float:
    """The sum of what each exchange is told that it added, events in the order of time."""
    use, before, spent_j = RadioUse(RADIO), {}, 0.0
    events = sorted(
        [(t, kind, i) for i, pair in enumerate(exchanges) for kind, t in zip((1, 0), pair, strict=True)]
    )
    for t, kind, i in events:
        if kind:
            before[i] = use.begin(0.0, t * CELL_S)
        else:
            spent_j += use.end(before[i], t * CELL_S)
    return spent_j


pairs = st.tuples(st.integers(0, 400), st.integers(1, 90)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(pairs, min_size=1, max_size=8))
def test_what_exchanges_add_is_what_the_radio_spends(exchanges: list[tuple[int, int]]) -> None:
    """Alone, within the tail of another, overlapping, in any number: nothing is lost or counted twice."""
    assert used_j(exchanges) == pytest.approx(played_j(exchanges), rel=1e-9)


@given(st.lists(pairs, max_size=5), st.integers(1, 120), st.integers(0, 100))
def test_an_exchange_is_priced_at_what_it_adds(
    others: list[tuple[int, int]], length: int, later: int
) -> None:
    """The radio's joules with it less those without it, where the others take as long as expected."""
    now = max([0, *(begin for begin, _ in others)]) + later
    use = RadioUse(RADIO)
    before = {}
    events = [(t, kind, i) for i, pair in enumerate(others) for kind, t in zip((1, 0), pair, strict=True)]
    for t, kind, i in sorted(events):
        if t > now:
            break
        if kind:
            before[i] = use.begin((others[i][1] - t) * CELL_S, t * CELL_S)
        else:
            use.end(before[i], t * CELL_S)
    found_j = use.with_energy(WAY, now * CELL_S).joules(1, length * CELL_S)
    added_j = played_j([*others, (now, now + length)]) - (played_j(others) if others else 0.0)
    assert found_j == pytest.approx(added_j, abs=1e-9)


def test_lte_pays_for_its_tail_once() -> None:
    """Ten exchanges a second apart cost one tail and the seconds between, not ten tails."""
    use, spent_j, now_s = RadioUse(LTE), 0.0, 0.0
    for _ in range(10):
        before_j = use.begin(0.2, now_s)
        spent_j += use.end(before_j, now_s + 0.2)
        now_s += 1.2
    waiting_j, between_j = 10 * 0.2 * LTE.waiting_W, 9 * 1.0 * LTE.tail_W
    once_j = LTE.tail_W * LTE.tail_s + LTE.wake_W * LTE.wake_s
    assert spent_j == pytest.approx(waiting_j + between_j + once_j)


def _node() -> Router:
    """5 J here at every length; 1 s above, by LTE; pinged an hour ago."""
    settings = RouterSettings(100, power=PowerModel("hub", 0.0, 5.0, ""), radio=LTE)
    node = Router("me", settings, line(1.0, 0.0, 100))
    node.add_successor("up", Link(0.2, 1e9))
    node.take_due_tasks(0.0)
    node.record_ping("up", 0.2, 0.0, CurveAdvert("up", only(line(0.8, 0.0, 100)), frozenset({"up"})), 0.0)
    return node


def test_who_has_just_sent_sends_again_and_who_slept_does_not() -> None:
    """The same input at the same prices: waking LTE takes 12.6 J, an answer here 5 J, its tail 2 J."""
    node = _node()
    asleep_s = 3600.0
    assert node.choose(9, asleep_s, ENERGY).target == LOCAL
    ticket = node.enter("up", 9, asleep_s)
    node.send("up", ticket, asleep_s)
    during = node.choose(9, asleep_s + 0.5, ENERGY)
    assert during.target == "up"
    assert during.seconds == pytest.approx(1.6), "it would wait for the first one's work"
    assert during.energy_j == pytest.approx(1.1 * LTE.waiting_W), "half a second the radio is on anyway"
    node.leave("up", ticket, asleep_s + 1.0)
    assert ticket.joules == pytest.approx(
        LTE.waiting_W * 1.0 + LTE.tail_W * LTE.tail_s + LTE.wake_W * LTE.wake_s
    )
    soon = node.choose(9, asleep_s + 2.0, ENERGY)
    assert soon.target == "up"
    assert soon.energy_j == pytest.approx(LTE.waiting_W * 1.0 + LTE.tail_W * 1.0)
    assert node.choose(9, asleep_s + 1.0 + LTE.tail_s + 0.1, ENERGY).target == LOCAL


def test_requests_and_pings_of_all_upstreams_share_one_radio() -> None:
    """A ping keeps it on as a request does, and what failed has used it as well."""
    node = _node()
    node.add_successor("other", Link(0.2, 1e9))
    node.record_ping(
        "other", 0.2, 0.0, CurveAdvert("other", only(line(9.0, 0.0, 100)), frozenset({"o"})), 3600.0
    )
    assert node.choose(9, 3601.0, ENERGY).energy_j == pytest.approx(LTE.waiting_W + LTE.tail_W)
    ticket = node.enter("other", 9, 3605.0)
    node.send("other", ticket, 3605.0)
    node.record_failure("other", 3606.0)
    node.leave("other", ticket, 3606.0)
    assert ticket.joules == pytest.approx(LTE.waiting_W + 5.0 * LTE.tail_W)
    assert node.choose(9, 3606.0, ENERGY).energy_j == pytest.approx(LTE.waiting_W)
    waits = node.enter("up", 9, 3606.0)
    node.leave("up", waits, 3607.0)
    assert waits.joules is None, "it was never sent"


def test_the_power_of_an_endpoint_is_that_of_its_latest_answers() -> None:
    """Counters say what an answer took; the model is for what was never counted."""
    node = _node()
    assert node.choose(9, 1e6, ENERGY).energy_j == pytest.approx(5.0)
    for k in range(200):
        node.record_local_answer(9, 1.0, 1e6 + k, joules=2.0 if k % 2 else 4.0)
    (here, *_) = node.ways_here
    assert here.joules(9, 1.0) == pytest.approx(3.0, rel=0.05)


def test_a_cluster_draws_all_its_devices_until_its_answers_say_what_it_took() -> None:
    """An upper bound at first: no device computes all the time of a split run."""
    node = _node()
    node.add_endpoint("cluster", line(1.0, 0.0, 100), watts=12.0)
    for joules, expected in ((None, 12.0), (6.0, 6.0)):
        if joules is not None:
            node.record_local_answer(9, 1.0, 1.0, "cluster", joules)
        cluster = node.ways_here[-1]
        assert cluster.joules(9, 1.0) == pytest.approx(expected)


def test_states_played_are_those_of_the_figure() -> None:
    """The reference itself, by hand: an exchange, its tail, a second one within it, and one long after."""
    once_j = 64 * CELL_S * 0.75 + 0.5
    assert played_j([(0, 64)]) == pytest.approx(1.5 + once_j)
    assert played_j([(0, 64), (96, 160)]) == pytest.approx(3.0 + 32 * CELL_S * 0.75 + once_j)
    assert played_j([(0, 64), (300, 364)]) == pytest.approx(3.0 + 2 * once_j)
