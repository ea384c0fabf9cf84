"""Shares of calls as pieces of straight lines, and texts as C constants."""

from hypothesis import given
from hypothesis import strategies as st

from pliant.compiler.aot.c_source import quote
from pliant.compiler.aot.model.form_source import linear_pieces


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 3)), min_size=1, max_size=40))
def test_pieces_say_what_the_points_said(points: list[tuple[int, int]]) -> None:
    """Any function of the number of rows survives, straight or not."""
    found = linear_pieces(points)
    for i, point in enumerate(points):
        first, units, slope, grain = [piece for piece in found if piece[0] <= i + 1][-1]
        assert first <= i + 1
        assert (units + slope * (i + 1), grain) == point


def test_a_straight_line_is_one_piece() -> None:
    """Tables stay small however long the inputs are."""
    assert linear_pieces([(3 * n + 1, 2) for n in range(1, 500)]) == [(1, 1, 3, 2)]
    assert linear_pieces([(7, 1)] * 500) == [(1, 7, 0, 1)]


def test_texts_are_c_constants_whatever_they_hold() -> None:
    """Quotes, backslashes, trigraphs, line ends and other alphabets."""
    assert quote('a"\\?\né') == '"a\\042\\134\\077\\012\\303\\251"'
