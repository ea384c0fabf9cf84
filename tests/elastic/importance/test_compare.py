"""Tables of importance compared and shown."""

from pathlib import Path

import numpy as np
import pytest

from research.importance_tables import draw_importance, importance_text, rank_correlation


def test_rank_correlation_is_spearmans() -> None:
    """Checked by hand: ties share their mean rank, order alone counts."""
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(a, np.exp(a)) == pytest.approx(1)
    assert rank_correlation(a, -a) == pytest.approx(-1)
    # Ranks 1.5 1.5 3 4 against 1 2 3 4: sums of squares 4.5 and 5, product 4.5.
    assert rank_correlation(np.array([5.0, 5.0, 6.0, 7.0]), a) == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert np.isnan(rank_correlation(np.ones(4), a))


def test_the_map_is_drawn_in_characters_and_as_a_picture(tmp_path: Path) -> None:
    """Figure 5 for a terminal and for a page."""
    table = np.array([[0.0, 0.5], [0.9, 1.0]])
    assert importance_text(table) == "layer  0  0 5\nlayer  1  9 9\n"
    pytest.importorskip("matplotlib")
    assert draw_importance(table, tmp_path / "map.png", "a map").stat().st_size > 1000
