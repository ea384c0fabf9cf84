"""What is a schedule of a program and what is none."""

import re
from dataclasses import replace

import pytest

from pliant.ir.capability import Capability, ClusterCost, Interface, Links, MessageOverhead
from pliant.ir.cost import Span, SpanState, simulate
from pliant.ir.program import Compute, Exchange, Load, Program, Segment, SliceRun, Step
from pliant.ir.schedule import violations
from pliant.plan.split.split_program import split
from pliant.plan.split.stage_graphs import work_flops
from tests.plan.splits import MODES, bert, partition

STEPS = (
    Step("a/cpu", Compute("make", 0, rows=1)),
    Step("net:a->b", Exchange("x", 4, "a", "b"), after=(0,)),
    Step("b/cpu", Compute("use", 0, rows=1), after=(1,)),
)
TWICE = Program((Segment(STEPS), Segment(STEPS)), (), ())
ENDS_S = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (1.0, 2.0), (2.0, 2.5), (3.0, 4.0)]
"""`a` begins the second segment while `b` is at the first, whose message was on its way."""


def spans(*times_s: tuple[float, float]) -> list[Span]:
    return [
        Span(i, step.lane, *at_s) for i, (step, at_s) in enumerate(zip(TWICE.steps, times_s, strict=True))
    ]


def test_devices_pass_a_barrier_by_themselves() -> None:
    """No member hears when another one has ended a segment."""
    assert not list(violations(TWICE, spans(*ENDS_S)))


@pytest.mark.parametrize(
    ("step", "start_s", "message"),
    [
        (1, 0.5, r"step 1 .* before step 0 "),
        (2, 1.5, r"step 2 .* before step 1 "),
        (3, 0.5, r"step 3 .* before step 0 "),
        (4, 1.5, r"step 4 .* before step [13] "),
        (5, 2.5, r"step 5 .* before step 2 "),
    ],
    ids=[
        "before it is made",
        "before it is here",
        "on a busy lane",
        "behind another message",
        "at a barrier",
    ],
)
def test_what_begins_too_early_is_named(step: int, start_s: float, message: str) -> None:
    """A run that does that follows another program than the one that was priced."""
    times_s = list(ENDS_S)
    times_s[step] = (start_s, times_s[step][1])
    found = list(violations(TWICE, spans(*times_s)))
    assert found
    assert re.match(message, found[0])
    assert not list(violations(TWICE, spans(*times_s), slack_s=0.5)), "clocks may be apart"


def test_what_did_not_run_is_not_judged() -> None:
    """A load that came too late was done without; a member that failed does not tell what it ran."""
    load = Load(0, (SliceRun(0, 0, 0, 1),), 4)
    program = Program((Segment((Step("io", load), Step("cpu", Compute("layer", 0), (0,)))),))
    cut = [Span(0, "io", 0.0, 2.0, SpanState.CUT), Span(1, "cpu", 1.0, 2.0)]
    assert not list(violations(program, cut))
    ran = [replace(cut[0], state=SpanState.RAN), cut[1]]
    assert len(list(violations(program, ran))) == 1


def test_spans_of_other_steps_are_no_schedule() -> None:
    """A second form of what ran could agree with everything and tell of nothing."""
    whole = spans(*ENDS_S)
    assert len(list(violations(TWICE, whole[:-1]))) == 1
    moved = [*whole[:2], replace(whole[2], lane="c/cpu"), *whole[3:]]
    assert list(violations(TWICE, moved)) == ["6 spans are not those of 6 steps, first at 2."]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("handing", [MessageOverhead(), MessageOverhead(1e-4, 1e-8)])
def test_what_is_predicted_is_a_schedule(mode: str, seed: int, handing: MessageOverhead) -> None:
    """The simulation and the judge are written apart."""
    spec = bert(n_layers=3)
    made = partition(spec, mode, 4, 9, seed)  # type: ignore[arg-type]
    program = split(spec, made)
    devices = {
        d: Capability(1.0, 1e6 * (i + 1), 1 << 30, send=handing, take=handing)
        for i, d in enumerate(made.devices)
    }
    links = Links({d: Interface(1e6, 2e6) for d in made.devices}, 1e-5)
    predicted = simulate(program, ClusterCost(devices, links, work_flops(spec, made)))
    assert not list(violations(program, predicted))


REFINED = Program(
    (
        Segment(
            (
                Step("io", Load(0, (SliceRun(0, 0, 0, 1),), 8)),
                Step("io", Load(0, (SliceRun(0, 1, 0, 1),), 8), latest_start_s=2.0),
                Step("cpu", Compute("layer", 0, 1, 1), (0,), (1,), 3.0),
            )
        ),
    ),
    (),
    (),
)


@pytest.mark.parametrize(
    ("refinement", "layer_s", "message"),
    [
        (Span(1, "io", 1.0, 2.0), 2.0, None),
        (Span(1, "io", 1.0, 4.0), 3.0, None),
        (Span(1, "io", 3.0, 3.0, SpanState.SKIPPED), 1.0, None),
        (Span(1, "io", 1.0, 4.0), 2.5, "step 2 .* waits 500.000 ms less for step 1"),
        (Span(1, "io", 2.5, 2.8), 2.8, "step 1 .* begins 500.000 ms after its latest start"),
    ],
    ids=["waited for", "done without", "skipped", "not waited for", "read too late"],
)
def test_a_refinement_is_waited_for_until_the_latest_start_alone(
    refinement: Span, layer_s: float, message: str | None
) -> None:
    """An anytime run that waits less loses bits that it paid for; one that waits longer, its target."""
    ran = (Span(0, "io", 0.0, 1.0), refinement, Span(2, "cpu", layer_s, 5.0))
    found = list(violations(REFINED, ran))
    assert (message is None and not found) or re.match(str(message), found[0])
