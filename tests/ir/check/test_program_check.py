"""A program that was written down is judged before anything runs it."""

from dataclasses import replace

import pytest

from pliant.ir.check.program_check import ProgramFault, program_faults
from pliant.ir.partition import Mode
from pliant.ir.program import Compute, Exchange, Load, Program, Segment, SliceRun, Step, Tensor, TensorPart
from pliant.ir.projection import project
from pliant.plan.split.split_program import split
from tests.plan.splits import MODES, bert, partition

LOAD = Load(0, (SliceRun(0, 0, 0, 4),), 64)
LOADED = (Step("io", LOAD), Step("io", LOAD), Step("cpu", Compute("layer", 0, 4, 8), (0,), (1,)))
X = Tensor("x.0", (8, 4))
SENT = Exchange("x.0", 64, "a", "b", TensorPart(0, 4, 0, 4))
SHARED = (
    Step("a/cpu", Compute("input", rows=8, device="a")),
    Step("net:a->b", SENT, (0,)),
    Step("b/cpu", Compute("rest", 0, rows=4, device="b"), (1,)),
)


def program(*segments: tuple[Step, ...], live: tuple[str, ...] = ()) -> Program:
    return Program(tuple(Segment(steps, live) for steps in segments), (X,), ())


def test_a_program_that_can_run_has_no_faults() -> None:
    """Loads that are needed, loads that are only preferred, loads behind another one, and messages."""
    assert not list(program_faults(program(LOADED)))
    assert not list(
        program_faults(program((LOADED[0], LOADED[1], replace(LOADED[2], after=(1,), prefer=()))))
    )
    assert not list(program_faults(program(SHARED)))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mode", MODES)
def test_splits_and_what_each_device_performs_of_them_have_no_faults(mode: Mode, seed: int) -> None:
    """The planner's own programs are the first that must pass."""
    spec = bert(n_layers=2)
    shares = partition(spec, mode, 3, 26, seed)
    whole = split(spec, shares)
    assert not list(program_faults(whole))
    for device in shares.participants:
        own = tuple(replace(project(s, device).segment, live=s.live) for s in whole.segments)
        assert not list(program_faults(replace(whole, segments=own)))


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (
            program((LOADED[0], LOADED[1], replace(LOADED[2], prefer=()))),
            ProgramFault(2, "layer 0 does not wait for its load, step 1."),
        ),
        (
            program((Step("cpu", Compute("layer", 0, 4, 8)), LOADED[0])),
            ProgramFault(0, "layer 0 does not wait for its load, step 1."),
        ),
        (program(LOADED[:2]), ProgramFault(0, "layer 0 is loaded, but no step computes it.")),
        (program(SHARED[:2], SHARED), ProgramFault(1, "nothing on b waits for x.0, and it is not kept.")),
        (
            program(SHARED, (replace(SHARED[1], after=()), replace(SHARED[2], after=(0,)))),
            ProgramFault(3, "x.0 was neither kept by the segment before nor made in this one."),
        ),
        (
            program((SHARED[0], replace(SHARED[1], work=replace(SENT, tensor="y")), SHARED[2])),
            ProgramFault(1, "y is sent, but is not a tensor of the program."),
        ),
        (
            program((SHARED[0], replace(SHARED[1], work=replace(SENT, n_bytes=60)), SHARED[2])),
            ProgramFault(1, "[0:4, 0:4] of x.0 has 64 bytes, not 60."),
        ),
        (
            program(
                (SHARED[0], replace(SHARED[1], work=replace(SENT, part=TensorPart(6, 4, 0, 4))), SHARED[2])
            ),
            ProgramFault(1, "[6:10, 0:4] is not a part of x.0, which has [8, 4]."),
        ),
    ],
    ids=["load", "load after", "useless", "not received", "not kept", "unknown", "bytes", "outside"],
)
def test_a_fault_names_its_step(wrong: Program, fault: ProgramFault) -> None:
    """One edit away from a program that can run."""
    assert fault in list(program_faults(wrong))


def test_what_is_kept_need_not_be_waited_for() -> None:
    """The next segment begins with it."""
    after = (replace(SHARED[1], after=()), replace(SHARED[2], after=(0,)))
    assert not list(program_faults(program(SHARED[:2], after, live=("x.0",))))
