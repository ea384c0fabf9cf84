"""When a plan is solved again, and when another one pays: decisions on numbers alone."""

from dataclasses import replace

import pytest

from pliant.cluster.watch.adapt import (
    LEAST_GAIN,
    WEIGHT,
    Topology,
    damp_ratio,
    drift,
    find_overloaded,
    find_recovered,
    is_alike,
    is_kept,
    is_more_precise,
    is_worthwhile,
    reason_to_solve,
)
from pliant.ir.capability import Capability, Drift, Interface, Links

GB = 10**9
DEVICE = Capability(0.1, 2e9, GB)
NEED = {"p": GB // 2, "a": GB // 2}


def topology(bandwidth: float = 1e8, **devices: Capability) -> Topology:
    known = {"p": DEVICE, "a": DEVICE} | devices
    return Topology(known, Links({name: Interface(bandwidth, bandwidth) for name in known}))


def slower(factor: float) -> Capability:
    return replace(DEVICE, drifts=(Drift("attend", factor),))


def test_pictures_of_a_percent_apart_are_alike() -> None:
    """Noise on every layer's times is not reckoned with anew."""
    assert is_alike(topology(), topology(a=slower(1.01)))
    assert not is_alike(topology(), topology(a=slower(1.05)))
    assert not is_alike(topology(), topology(2e8))
    assert not is_alike(topology(), topology(b=DEVICE))


def test_what_stays_as_it_was_is_not_solved_again() -> None:
    """Noise of a few percent must not move weights."""
    assert reason_to_solve(topology(), topology(), ("p", "a"), NEED, 0) is None
    assert reason_to_solve(topology(), topology(a=slower(1.1)), ("p", "a"), NEED, 0) is None


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (topology(a=slower(1.3)), "drifted"),
        (topology(a=slower(0.7)), "drifted"),
        (topology(bandwidth=5e7), "drifted"),
        (topology(b=DEVICE), "b joined"),
        (topology(a=replace(DEVICE, free_bytes=GB // 4)), "memory of a"),
        (topology(a=replace(DEVICE, frequency_Hz=8e9)), "measurement of a"),
    ],
)
def test_what_changed_is_said(now: Topology, says: str) -> None:
    """Slower, faster, narrower, more, or with less memory."""
    assert says in (reason_to_solve(topology(), now, ("p", "a"), NEED, 0) or "")


def test_who_left_is_said() -> None:
    """It takes part in the plan, so the plan cannot stay."""
    now = Topology({"p": DEVICE}, Links({"p": Interface(1e8, 1e8)}))
    assert reason_to_solve(topology(), now, ("p", "a"), NEED, 0) == "a left"


def test_drift_counts_both_ways() -> None:
    """Half and double the speed are as far away."""
    there, back = drift(topology(), topology(a=slower(2.0)), ("p", "a")), topology(a=slower(2.0))
    assert there == pytest.approx(1.0)
    assert drift(back, topology(), ("p", "a")) == pytest.approx(1.0)


def test_the_primary_alone_is_gone_back_to_for_any_gain() -> None:
    """A split that turned out slower must not stay for being only a little slower."""
    for gain in (0.01, LEAST_GAIN - 0.01, LEAST_GAIN + 0.01):
        assert is_kept(1.0, 1.0 - gain, is_home=False) == (gain < LEAST_GAIN)
        assert not is_kept(1.0, 1.0 - gain, is_home=True)
    assert is_kept(1.0, 1.0, is_home=True)


@pytest.mark.parametrize(
    ("new_s", "n_layers", "load_s", "switch_s", "is_worth_it"),
    [
        (0.5, 10, 0.0, 1.0, True),
        (0.5, 10, 8.0, 1.0, False),  # two layers are left once the weights are there
        (0.5, 10, 0.0, 6.0, False),  # moving the layer's input costs more than is won
        (1.1, 10, 0.0, 0.0, False),
    ],
)
def test_a_switch_has_to_pay_within_the_run(
    new_s: float, n_layers: int, load_s: float, switch_s: float, is_worth_it: bool
) -> None:
    """Loading weights and the switch itself are part of the decision."""
    assert is_worthwhile(1.0, new_s, n_layers, load_s, switch_s) is is_worth_it


def test_a_drift_that_no_layer_feels_is_not_solved_again() -> None:
    """A stage of microseconds may take twice as long in any run: plans would never stand still."""
    now = topology(a=slower(3.0))
    assert (
        reason_to_solve(topology(), now, ("p", "a"), NEED, 0, lambda one: 1.0 + 0.05 * (one is now)) is None
    )
    said = reason_to_solve(topology(), now, ("p", "a"), NEED, 0, lambda one: 1.0 + 0.5 * (one is now))
    assert said == "times drifted by 50%"


def test_a_plan_that_saves_little_is_not_switched_to() -> None:
    """What it promises is no more exact, and its weights and stages are made beside the run."""
    assert not is_worthwhile(1.0, 0.95, 1000, 0.0, 0.0)
    assert is_worthwhile(1.0, 0.85, 1000, 0.0, 0.0)


@pytest.mark.parametrize(
    ("planned_bytes", "now_bytes", "is_back"),
    [
        (GB // 2, GB, True),
        (GB - 1, GB, True),  # little more, but whole layers fit again
        (GB // 2, GB // 2 + GB // 10, False),
        (GB // 2, GB // 2 + GB // 5, True),  # not whole ones, but a larger share
        (GB, 9 * GB, False),  # it was not short
    ],
)
def test_memory_that_is_back_is_a_reason_where_it_was_short(
    planned_bytes: int, now_bytes: int, is_back: bool
) -> None:
    """Hepti 4.2: whoever was given tiles for lack of memory may hold whole layers again."""
    planned, now = (topology(a=replace(DEVICE, free_bytes=n)) for n in (planned_bytes, now_bytes))
    said = reason_to_solve(planned, now, ("p", "a"), {"p": 1, "a": 1}, whole_bytes=GB)
    assert said == ("memory of a is back" if is_back else None)


def test_who_was_left_out_and_may_be_quicker_is_found() -> None:
    """By its own times, or by its link; who has a part is judged by what layers take."""
    slow = topology(a=slower(3.0))
    assert find_recovered(slow, slow, ("p",)) == ()
    assert find_recovered(slow, topology(a=slower(2.9)), ("p",)) == ()
    assert find_recovered(slow, topology(), ("p",)) == ("a",)
    assert find_recovered(slow, topology(), ("p", "a")) == ()
    assert find_recovered(topology(1e6), topology(1e8), ("p",)) == ("a",)
    assert find_recovered(topology(1e8), topology(1e6), ("p",)) == ()


def test_who_left_is_not_said_to_lack_memory() -> None:
    """Its silence is dealt with elsewhere; a plan may still name it for a moment."""
    assert find_overloaded({"p": 2 * GB, "gone": GB}, topology()) == ("p",)


@pytest.mark.parametrize("ratio", [4.0, 0.25])
def test_what_is_seen_twice_is_believed_and_a_stall_is_not(ratio: float) -> None:
    """A link that fell to a quarter is known after two layers; one late message moves little."""
    once = damp_ratio(ratio)
    assert once == pytest.approx(1 - WEIGHT + WEIGHT * ratio)
    left = ratio / once
    assert once * damp_ratio(left, left) == pytest.approx(ratio)
    back = damp_ratio(1 / once, left)  # it was a stall
    assert abs(once * back - 1) < abs(once - 1)


@pytest.mark.parametrize(
    ("new", "current", "is_more"),
    [
        ((), (6, 6), True),
        ((3, 2), (2, 2), True),
        ((2, 2), (3, 2), False),
        ((2, 2), (), False),
        ((), (), False),
    ],
)
def test_float32_and_more_bits_are_more_precise(
    new: tuple[int, ...], current: tuple[int, ...], is_more: bool
) -> None:
    assert is_more_precise(new, current) is is_more
