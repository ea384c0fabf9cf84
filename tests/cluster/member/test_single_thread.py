"""The order in which one thread runs a member's steps."""

import numpy as np
import pytest

from pliant.cluster.member.single_thread import single
from pliant.ir.partition import Mode
from pliant.ir.program import Compute, Exchange, Segment, takes_part
from pliant.plan.split.split import layer_segment
from tests.plan.splits import MODES, bert, mobilebert, partition

_TOKENS = 9


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
                own, numbers = single(whole, device)
                mine = {i for i, step in enumerate(whole.steps) if takes_part(step, device)}
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
def test_what_is_made_is_sent_before_anything_is_waited_for(mode: Mode) -> None:
    """Another member may have nothing else to do until it arrives."""
    for seed in range(6):
        for whole, devices in _segments(mode, 4, seed):
            for device in devices:
                own, _ = single(whole, device)
                is_waiting = False
                for step in own.steps:
                    if isinstance(step.work, Compute):
                        is_waiting = False
                    elif step.work.src == device:  # type: ignore[union-attr]
                        assert not is_waiting
                    else:
                        is_waiting = True


def _pairs(whole: Segment, device: str) -> tuple[list[object], tuple[int, ...]]:
    own, numbers = single(whole, device)
    return [step.work for step in own.steps], numbers


def _may_run(work: object, number: int, device: str, sent: set[int]) -> bool:
    return not (isinstance(work, Exchange) and work.dst == device) or number in sent
