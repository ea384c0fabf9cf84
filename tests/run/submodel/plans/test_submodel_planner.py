"""What a session plans from what a store knows: the measured grid first, sizes where there is none."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.ir.device import DeviceProfile
from pliant.plan.submodel.plan_options import PlanOptions
from pliant.run.submodel.plans.submodel_planner import SessionOptions, planner_of
from pliant.store.manifest import AccuracyEntry, AccuracyTable, put_accuracy, read_manifest
from tests.run.conftest import OpenElastic

ELASTIC = {"n_layers": 4, "widths": (2, 4)}
# Deep and narrow is best: the opposite of what most slices prefer at a target that fits 3x4 or 4x2.
GRID = AccuracyTable(
    500,
    tuple(
        AccuracyEntry(n, m, bits, 0.6 + 0.08 * n - 0.01 * m - 0.05 / bits, -1 + 0.16 * n - 0.02 * m)
        for n in (1, 2, 3, 4)
        for m in (2, 4)
        for bits in (2, 6, 32)
    ),
)


@pytest.fixture(scope="module")
def measured(tiny_store: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that knows what its submodels answer."""
    path = tmp_path_factory.mktemp("measured") / "store"
    shutil.copytree(tiny_store(**ELASTIC), path)
    put_accuracy(path, GRID)
    return path


def test_a_store_with_a_grid_is_planned_by_it_unless_size_is_asked_for(
    measured: Path, tiny_store: Callable[..., Path], slow_profile: Callable[..., DeviceProfile]
) -> None:
    """The default must be the better rule, and the paper's one option away."""
    knows, knows_not = (
        planner_of(read_manifest(p), slow_profile()) for p in (measured, tiny_store(**ELASTIC))
    )
    options = SessionOptions(0.0138, length=8)
    by_accuracy, by_size = knows.plan(options, 8), knows_not.plan(options, 8)
    assert (by_accuracy.n, by_accuracy.width) == (4, 2)
    assert (by_size.n, by_size.width) == (3, 4)
    assert by_accuracy.expected_accuracy is not None
    assert by_size.expected_accuracy is None
    asked = knows.plan(SessionOptions(0.0138, length=8, plan=PlanOptions(choose="size")), 8)
    assert (asked.n, asked.width, asked.bits) == (by_size.n, by_size.width, by_size.bits)


def test_a_margin_keeps_that_share_of_the_target_free(
    measured: Path, slow_profile: Callable[..., DeviceProfile]
) -> None:
    """What no lane shows (Python, wake-ups) must not be planned away."""
    planner = planner_of(read_manifest(measured), slow_profile())
    for margin in (0.0, 0.05, 0.3):
        p = planner.plan(SessionOptions(0.012, length=8, margin=margin), 8)
        assert p.latency_p95_s <= 0.012 * (1 - margin) + 1e-9


def test_a_retargeted_session_and_an_engagement_go_on_choosing_by_accuracy(
    elastic_session: OpenElastic, measured: Path
) -> None:
    """Every replanning takes the same rule, or answers would change with the way a target was set."""
    options = SessionOptions(1.0, length=8, n_threads=1)
    with elastic_session(options, store=measured) as session:
        assert (session.plan.n, session.plan.width) == (4, 2)  # expected to be more accurate than 4x4
        session.retarget(latency=0.0115)
        assert (session.plan.n, session.plan.width) == (4, 2)
        with session.engagement("1MB"):
            session("the story was not good")
            assert (session.plan.n, session.plan.width) == (4, 2)
            assert session.plan.expected_accuracy is not None
        session.retarget(latency=0.0085)
        assert session.plan.n == 3
