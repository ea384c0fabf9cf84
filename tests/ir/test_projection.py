"""A device's own steps, in the order in which one thread follows them, and what they wait for."""

import numpy as np
import pytest

from pliant.ir.partition import Mode
from pliant.ir.program import Compute, Exchange, Load, Segment, SliceRun, Step
from pliant.ir.projection import involves, join_segments, n_devices, project
from pliant.plan.split.split_program import layer_segment
from tests.plan.splits import MODES, bert, mobilebert, partition

_TOKENS = 9


def two_devices() -> Segment:
    return Segment(
        (
            Step("a/cpu", Compute("heads", 0)),
            Step("b/io", Load(0, (SliceRun(0, 0, 0, 4),), 256)),
            Step("b/cpu", Compute("heads", 0), after=(1,)),
            Step("net:b->a", Exchange("part", 64, "b", "a"), after=(2,)),
            Step("a/cpu", Compute("sum", 0), after=(0, 3)),
        )
    )


def test_a_device_runs_its_own_part_of_the_global_order() -> None:
    """Each device keeps its lanes and exchanges, renumbered; a receive stands for what it waited for."""
    a = project(two_devices(), "a").segment.steps
    assert [s.lane for s in a] == ["a/cpu", "net:b->a", "a/cpu"]
    assert [s.after for s in a] == [(), (), (0, 1)]
    b = project(two_devices(), "b").segment.steps
    assert [s.lane for s in b] == ["b/io", "b/cpu", "net:b->a"]
    assert [s.after for s in b] == [(), (0,), (1,)]


def test_waiting_for_another_device_without_an_exchange_is_refused() -> None:
    """Devices share no memory: order between them exists only where something is sent."""
    segment = Segment((Step("a/cpu", Compute("x", 0)), Step("b/cpu", Compute("y", 0), after=(0,))))
    with pytest.raises(ValueError, match="no exchange carries"):
        project(segment, "b")


def test_a_device_waits_at_a_barrier_for_itself_alone() -> None:
    """No member of a cluster hears when another one has ended a segment, or when a message has arrived."""
    segment = two_devices()
    steps = join_segments((segment, segment)).steps
    assert [s.after for s in steps[:5]] == [s.after for s in segment.steps]
    assert [s.after for s in steps[5:]] == [(0, 3, 4), (1, 2), (1, 2, 6), (1, 2, 7), (5, 8)]
    assert n_devices((segment,)) == 2


def test_one_device_waits_at_a_barrier_for_all() -> None:
    """A program without names of devices has barriers that no lane passes early."""
    segment = Segment((Step("io", Load(0, (SliceRun(0, 0, 0, 4),), 256)), Step("cpu", Compute("layer", 0))))
    assert [s.after for s in join_segments((segment, segment)).steps] == [(), (), (0, 1), (0, 1)]
    assert n_devices((segment, segment)) == 1


def test_messages_of_one_sender_are_taken_in_their_order() -> None:
    """They come one behind the other: a later one that is needed first is not there before."""
    steps = (
        Step("net:b->a", Exchange("x", 4, "b", "a")),
        Step("net:b->a", Exchange("y", 4, "b", "a")),
        Step("a/cpu", Compute("of y", 0), after=(1,)),
        Step("a/cpu", Compute("of both", 0), after=(0, 1)),
    )
    assert project(Segment(steps), "a").numbers == (0, 1, 2, 3)


def _segments(mode: Mode, ranks: int, seed: int) -> list[tuple[Segment, tuple[str, ...]]]:
    spec = bert() if seed % 2 else mobilebert()
    found = partition(spec, mode, ranks, _TOKENS, seed)
    lacking = found.devices[1:] if seed % 3 else ()
    return [(layer_segment(spec, found, layer, lacking), found.devices) for layer in range(spec.n_layers)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_no_step_is_lost_and_none_comes_before_what_it_waits_for(mode: Mode, ranks: int) -> None:
    """The numbers are what messages are told apart by, equal at both ends."""
    for seed in range(6):
        for whole, devices in _segments(mode, ranks, seed):
            for device in devices:
                part = project(whole, device)
                own, numbers = part.segment, part.numbers
                mine = {i for i, step in enumerate(whole.steps) if involves(step, device)}
                assert sorted(numbers) == sorted(mine)
                for at, (step, number) in enumerate(zip(own.steps, numbers, strict=True)):
                    assert step.work == whole.steps[number].work
                    assert {numbers[j] for j in step.after} == mine & set(whole.steps[number].after)
                    assert all(j < at for j in step.after)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_members_that_run_so_never_wait_for_each_other_in_a_ring(mode: Mode, ranks: int) -> None:
    """Each has one thread: a receive too early would keep back what another one waits for."""
    for seed in range(6):
        for whole, devices in _segments(mode, ranks, seed):
            left = {device: list(zip(*_pairs(whole, device), strict=True)) for device in devices}
            sent: set[int] = set()
            rng = np.random.default_rng(seed)
            while any(left.values()):
                able = [d for d, steps in left.items() if steps and _may_run(*steps[0], d, sent)]
                assert able, {d: str(steps[0][0]) for d, steps in left.items() if steps}
                device = able[rng.integers(len(able))]
                step, number = left[device].pop(0)
                if isinstance(step, Exchange) and step.src == device:
                    sent.add(number)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_both_ends_of_a_lane_follow_the_order_of_its_steps(mode: Mode, ranks: int) -> None:
    """The priced program sends the messages of a lane one after another: both ends must use that order."""
    for seed in range(30):
        for whole, devices in _segments(mode, ranks, seed):
            for device in devices:
                numbers = project(whole, device).numbers
                for lane in {whole.steps[i].lane for i in numbers}:
                    ran = [i for i in numbers if whole.steps[i].lane == lane]
                    assert ran == sorted(ran)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_made_is_sent_before_anything_is_waited_for(mode: Mode) -> None:
    """Another member may have nothing else to do until it arrives."""
    for seed in range(6):
        for whole, devices in _segments(mode, 4, seed):
            for device in devices:
                own = project(whole, device).segment
                is_waiting = False
                for step in own.steps:
                    if isinstance(step.work, Compute):
                        is_waiting = False
                    elif step.work.src == device:  # type: ignore[union-attr]
                        assert not is_waiting
                    else:
                        is_waiting = True


def _pairs(whole: Segment, device: str) -> tuple[list[object], tuple[int, ...]]:
    part = project(whole, device)
    return [step.work for step in part.segment.steps], part.numbers


def _may_run(work: object, number: int, device: str, sent: set[int]) -> bool:
    return not (isinstance(work, Exchange) and work.dst == device) or number in sent
