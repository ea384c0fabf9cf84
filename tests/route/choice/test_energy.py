"""Equations 8 and 9 by hand, and the sources' numbers."""

import pytest

from pliant.errors import RouteError
from pliant.ir.curve import line
from pliant.ir.link import Link
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.choice.energy import (
    A53_COVE,
    A53_IMDB,
    LTE,
    DeviceWork,
    PowerModel,
    RadioModel,
    cluster_joules,
    local_candidate,
    remote_candidate,
)
from pliant.route.choice.objective import ENERGY, TIME
from pliant.route.curve_advert import CurveAdvert
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from tests.route.routers import only


def test_the_papers_powers_are_figure_8s() -> None:
    """Baseline and increments of the Cortex-A53."""
    assert (A53_COVE.idle_W, A53_COVE.compute_W, A53_IMDB.compute_W) == (1.81, 1.00, 0.91)


def test_lte_sends_a_megabit_for_its_slope() -> None:
    """438.39 mW per Mbit/s is as many millijoules a megabit, however fast; down 51.97."""
    assert LTE.transfer_j(125_000, 0) == pytest.approx(0.43839)
    assert LTE.transfer_j(0, 250_000) == pytest.approx(2 * 0.05197)


def test_an_exchange_pays_for_the_tail_that_it_adds() -> None:
    """A trace of exchanges costs what the radio's states cost, second by second: Huang et al., Figure 1.

    The reference plays the states: asleep, waking, on, tail; the sum of `tail_j` must agree with it.
    """
    ends_s, spent_j = float("-inf"), 0.0
    gaps_s = [30.0, 0.2, 4.0, 11.5, 11.6, 0.0, 25.0]
    played_j, on_until_s, now_s = 0.0, float("-inf"), 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        spent_j += LTE.tail_j(now_s - ends_s)
        if now_s >= on_until_s:
            played_j += 1.2107 * 0.2601
            if on_until_s > 0.0:
                played_j += 1.06 * 11.576
        else:
            played_j += 1.06 * (now_s - ends_s)
        ends_s, on_until_s = now_s, now_s + 11.576
    played_j += 1.06 * 11.576
    assert spent_j == pytest.approx(played_j)


def test_a_clusters_joules_are_those_of_all_its_devices() -> None:
    """Seconds run side by side, joules add up; devices on the mains and on cables count nothing."""
    works = [
        DeviceWork(0.2, A53_COVE, sent_bytes=125_000, radio=LTE),
        DeviceWork(0.1, A53_IMDB),
        DeviceWork(5.0, sent_bytes=1e9),
    ]
    assert cluster_joules(works) == pytest.approx(0.2 * 1.00 + 0.43839 + 0.1 * 0.91)
    assert cluster_joules([]) == 0.0


def test_local_energy_is_equation_8() -> None:
    """The increment while it computes; a queue costs time, not power."""
    here = local_candidate(only(line(0.1, 0.01, 100)), 0.5, A53_COVE.compute_W)
    assert here.seconds(10) == pytest.approx(0.7)
    assert here.joules(10, here.seconds(10)) == pytest.approx(0.2)


def test_remote_energy_is_equation_9() -> None:
    """E_tx0 for the bytes, P_tx until the answer."""
    far = remote_candidate("up", only(line(0.1, 0.01, 100)), (0.05, 0.001), (0.0, 125.0), (250.0, 0.0), LTE)
    seconds = 0.05 + 0.01 + 0.1 + 0.1
    assert far.seconds(10) == pytest.approx(seconds)
    sent_j, received_j = 1250 / 125_000 * 0.43839, 250 / 125_000 * 0.05197
    assert far.joules(10, seconds) == pytest.approx(sent_j + received_j + 1.28804 * seconds)


def test_for_energy_fewer_inputs_leave_the_device() -> None:
    """CRIME 5.4: an LTE radio draws more than the A53 adds, so the curves of Figure 14 move left."""
    node = Router("me", RouterSettings(100, power=A53_COVE, radio=LTE), line(0.0, 0.02, 100))
    node.add_successor("up", Link(0.2, 250e3))
    node.take_due_tasks(0.0)
    node.record_ping("up", 0.2, 0.0, CurveAdvert("up", only(line(0.0, 0.001, 100)), frozenset({"up"})), 0.0)

    def first_away(objective: object) -> int:
        return next(n for n in range(101) if node.choose(n, 0.0, objective).target != LOCAL)  # type: ignore[arg-type]

    assert first_away(TIME) == 11
    assert first_away(ENERGY) == 14


@pytest.mark.parametrize("watts", [-1.0, float("nan"), float("inf")])
def test_powers_that_cannot_be_are_refused(watts: float) -> None:
    """They come from options."""
    with pytest.raises(RouteError):
        PowerModel("x", 1.0, watts, "")
    with pytest.raises(RouteError):
        RadioModel("x", 1.0, 1.0, watts, "")
