"""Pictures of plans are files that open."""

from pathlib import Path

import numpy as np
import pytest

from pliant.errors import InputError
from pliant.ir.cost import CostTable, LayerCost
from pliant.ir.link import Link
from pliant.plan.plan import Budget
from pliant.plan.plan_figure import draw_plan
from pliant.plan.submodel.search import plan
from pliant.plan.submodel.shape import StoreShape

SHAPE = StoreShape(4, 6, (3, 6), 18432, 294912, (1, 2, 3, 4))
COSTS = CostTable((LayerCost(3, 1e-3, 1e-3), LayerCost(6, 2e-3, 2e-3)), Link(1e-4, 8e8), 1e-4, 1e-4, 1e-4)


def test_a_plan_is_drawn_with_its_bits_budgets_and_timeline(tmp_path: Path) -> None:
    """`plan --plot FILE`: the three things a user asks about a plan, in one picture."""
    pytest.importorskip("matplotlib", reason="an extra")
    p = plan(SHAPE, COSTS, Budget(0.012, 100_000), np.ones((4, 6)))
    draw_plan(p, tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    assert text.count("<svg") == 1
    draw_plan(p, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    """A picture nobody can open is worse than an error."""
    p = plan(SHAPE, COSTS, Budget(0.012, 100_000), np.ones((4, 6)))
    with pytest.raises(InputError, match=r"\.svg, \.png or \.pdf"):
        draw_plan(p, tmp_path / "plan.jpeg2000")
