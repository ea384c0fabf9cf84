"""A program of the caller's thread alone: order, times, errors."""

import pytest

from pliant.errors import StoreError
from pliant.ir.program import Compute, Program, Segment, Step
from pliant.ir.schedule import violations
from pliant.run.execute_inline import execute_inline, inline_spans

STEPS = [Step("cpu", Compute(f"step {i}", rows=1)) for i in range(3)]
PROGRAM = Program((Segment(tuple(STEPS[:2])), Segment(tuple(STEPS[2:]))))


def test_steps_run_in_order_and_their_spans_are_a_schedule_of_the_program() -> None:
    """What a profile shows is what ran: numbers go on over segments."""
    seen: list[tuple[int, Compute]] = []
    readings_s = execute_inline(PROGRAM, lambda i, work: seen.append((i, work)))
    spans = inline_spans(PROGRAM, readings_s)
    assert seen == [(i, step.work) for i, step in enumerate(STEPS)]
    assert [(span.step, span.lane) for span in spans] == [(i, "cpu") for i in range(3)]
    assert spans[0].start_s == 0.0
    assert not list(violations(PROGRAM, spans))


def test_what_a_step_raises_reaches_the_caller_as_it_is() -> None:
    """There is no lane whose name would help: the caller reads its own error."""

    def fail(step: int, work: Compute) -> None:
        if step == 1:
            raise StoreError("damaged")

    with pytest.raises(StoreError, match="damaged"):
        execute_inline(PROGRAM, fail)
