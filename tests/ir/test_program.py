"""Programs cannot be built wrong, bind their extents, and split over devices."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pliant.ir.program import (
    FULL,
    Compute,
    Exchange,
    LinearExtent,
    Load,
    Program,
    Segment,
    SliceRun,
    Step,
    Tensor,
    TensorPart,
    bind,
    part_of,
)
from pliant.ir.text.program_text import program_text

LAYER = Compute("layer", 3, 12)
HIDDEN = Tensor("hidden", (LinearExtent("tokens"), 384))


def one_segment(*steps: Step) -> Program:
    return Program((Segment(steps),))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Step("cpu", LAYER, after=(1,)), "only name earlier steps"),
        (Step("cpu", LAYER, after=(-1,)), "only name earlier steps"),
        (Step("cpu", LAYER, prefer=(5,)), "only name earlier steps"),
        (Step("", LAYER), "lane name"),
        (Step("a lane", LAYER), "lane name"),
        (Step("cpu", LAYER, latest_start_s=1.0), "latest start"),
        (Step("net:a->c", Exchange("hidden", 4, "a", "b")), "on lane"),
        (Step("net:a->a", Exchange("hidden", 4, "a", "a")), "to itself"),
        (Step("b/cpu", Compute("attend", 0, 2, 8, "a")), "computes on a"),
    ],
)
def test_a_wrong_step_cannot_be_put_into_a_segment(step: Step, message: str) -> None:
    """An invalid program must fail where it is built, not where it runs."""
    with pytest.raises(ValueError, match=message):
        Segment((Step("cpu", LAYER), step))


def test_runs_and_loads_name_something_that_exists() -> None:
    """A read of nothing, of an unknown part or of another layer is a planner's mistake."""
    for run in (SliceRun(1, 7, 0, 1), SliceRun(1, 0, 0, 0), SliceRun(1, 0, -1, 1)):
        with pytest.raises(ValueError, match="possible runs"):
            Load(1, (run,), 64)
    with pytest.raises(ValueError, match="3 reads"):
        Load(1, (SliceRun(1, 0, 0, 2),), 64, 3)
    with pytest.raises(ValueError, match="load of layer 1"):
        Load(1, (SliceRun(0, 0, 0, 1),), 64)
    with pytest.raises(ValueError, match="load of layer 1"):
        Load(1, (), 64)


def test_tensors_and_extents_are_declared() -> None:
    """A segment keeps only tensors of the program, and no extent stays unbound by accident."""
    with pytest.raises(ValueError, match="not tensors"):
        Program((Segment((Step("cpu", LAYER),), live=("hidden",)),))
    with pytest.raises(ValueError, match="not unique"):
        Program((), (HIDDEN, HIDDEN))
    with pytest.raises(ValueError, match="not declared"):
        Program((Segment((Step("cpu", Compute("layer", rows=LinearExtent("rows"))),)),))


def test_binding_makes_every_amount_a_number() -> None:
    """Extents are symbols until a run is known: rows, bytes of an exchange, shapes."""
    send = Step("net:a->b", Exchange("hidden", LinearExtent("tokens", 384 * 4, 8), "a", "b"))
    program = Program((Segment((Step("a/cpu", LAYER), send), ("hidden",)),), (HIDDEN,))
    bound = bind(program, {"tokens": 10})
    assert bound.extents == ()
    assert bound.steps[0].work == Compute("layer", 3, 12, 10)
    assert bound.steps[1].work == Exchange("hidden", 15368, "a", "b")
    assert bound.tensors[0].shape == (10, 384)
    with pytest.raises(ValueError, match="tokens"):
        bind(program, {})


def two_devices() -> Program:
    return Program(
        (
            Segment(
                (
                    Step("a/cpu", Compute("heads", 0)),
                    Step("b/io", Load(0, (SliceRun(0, 0, 0, 4),), 256)),
                    Step("b/cpu", Compute("heads", 0), after=(1,)),
                    Step("net:b->a", Exchange("part", 64, "b", "a"), after=(2,)),
                    Step("a/cpu", Compute("sum", 0), after=(0, 3)),
                ),
            ),
        )
    )


def test_an_untimed_program_differs_by_its_latest_starts_alone() -> None:
    """Texts of a batch run the bits that were planned: they wait for every step that one text would skip."""
    load = Load(0, (SliceRun(0, 1, 0, 1),), 4096)
    layer = Step("cpu", Compute("layer", 0, 1), (), (0,), 0.5)
    timed = one_segment(Step("io", load, latest_start_s=0.25), layer)
    assert timed.untimed == one_segment(Step("io", load), replace(layer, latest_start_s=None))


def test_a_program_prints_as_stable_text(golden: Callable[[str, str], None]) -> None:
    """Programs are compared as text in reviews and golden files."""
    keys = Tensor("keys", (LinearExtent("tokens", 2), 64), 2)
    load = Load(3, (SliceRun(3, 0, 0, 12), SliceRun(3, 1, 0, 12)), 442368)
    steps = (
        Step("cpu", Compute("embed")),
        Step("io", load),
        Step("io", Load(3, (SliceRun(3, FULL, 2, 1),), 294912), (1,)),
        Step("cpu", LAYER, (1,), (2,), 0.0125),
    )
    network = two_devices().segments[0]
    program = Program((Segment(steps, ("hidden",)), network), (HIDDEN, keys))
    golden("program.txt", program_text(program))


def test_parts_of_a_tensor_meet_in_a_rectangle_or_not_at_all() -> None:
    """What one device has and another needs is an overlap; an empty message must not be sent."""
    rows, heads = TensorPart(4, 4, 0, 8), TensorPart(0, 6, 2, 3)
    assert rows.shared(heads) == TensorPart(4, 2, 2, 3) == heads.shared(rows)
    assert rows.shared(TensorPart(0, 4, 0, 8)) is None
    assert part_of(range(3, 3), range(8)) is None
    assert str(Exchange("x", 24, "a", "b", rows.shared(heads))) == "send x[4:6, 2:5] a->b (24 B)"
    with pytest.raises(ValueError, match="empty"):
        TensorPart(0, 0, 0, 4)


def test_a_bound_step_is_still_on_its_device() -> None:
    """Devices differ in cost, so the name has to survive binding."""
    program = one_segment(Step("a/cpu", Compute("attend", 0, 2, device="a")))
    assert bind(program, {"tokens": 4}).steps[0].work == Compute("attend", 0, 2, 4, "a")
