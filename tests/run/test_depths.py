"""Sessions of ordinary models keep every layer: at any length, under any target, and by any way of asking."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.errors import BudgetError
from pliant.ir.device import DeviceProfile
from pliant.plan.plan import NO_TARGET_S
from pliant.plan.submodel.plan_options import PlanOptions
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from tests.run.conftest import OpenElastic

ORDINARY = {"n_layers": 4, "widths": (4,)}
SHORT, LONG = "good", "the story was not good but the actor is good and the plot is not"


def test_a_longer_text_than_was_planned_for_is_answered_by_the_whole_model(
    elastic_session: OpenElastic, tiny_store: Callable[..., Path], slow_profile: Callable[..., DeviceProfile]
) -> None:
    """Longer inputs run as well as they can, which once meant without most of the model."""
    profile = slow_profile(widths=(4,))
    options = SessionOptions(0.02, length=8, n_threads=1)
    with elastic_session(options, store=tiny_store(**ORDINARY), profile=profile) as session:
        for text in (SHORT, LONG):
            for latency in (0.02, 0.001):
                reply = session(text, latency=latency)
                assert (reply.details.submodel, reply.cut) == ((4, 4), "none")
        with pytest.raises(BudgetError, match="--depths any"):
            session.retarget(latency="1ms")


def test_best_effort_keeps_every_layer_unless_any_depth_is_asked_for(
    elastic_session: OpenElastic, tiny_store: Callable[..., Path], slow_profile: Callable[..., DeviceProfile]
) -> None:
    """Best effort promises an answer, not a wrong one; the reply tells when layers were left out."""
    ran = {}
    for depths in ("trained", "any"):
        options = SessionOptions(
            0.001, length=8, n_threads=1, best_effort=True, plan=PlanOptions(depths=depths)
        )
        with elastic_session(
            options, store=tiny_store(**ORDINARY), profile=slow_profile(widths=(4,))
        ) as session:
            reply = session(SHORT)
            ran[depths] = (reply.details.submodel, reply.cut)
    assert ran == {"trained": ((4, 4), "none"), "any": ((1, 4), "untrained")}


@pytest.mark.parametrize("depths", ["trained", "any"])
def test_a_node_trades_layers_of_an_ordinary_model_only_when_told_to(
    elastic_session: OpenElastic,
    tiny_store: Callable[..., Path],
    slow_profile: Callable[..., DeviceProfile],
    depths: str,
) -> None:
    """Its levels come from the same planner, so the rule holds for every deadline of a request."""
    options = SessionOptions(NO_TARGET_S, length=8, n_threads=1, plan=PlanOptions(depths=depths))  # type: ignore[arg-type]
    with elastic_session(options, store=tiny_store(**ORDINARY), profile=slow_profile(widths=(4,))) as session:
        plans = [session.plan_at(n, t) for n in (8, 24) for t in (1e-6, 0.006, 0.01, NO_TARGET_S)]
        is_any = depths == "any"
        assert any(p.n < 4 for p in plans) == is_any
        assert ({p.cut for p in plans} == {"none", "untrained"}) == is_any
        assert session.best is None
