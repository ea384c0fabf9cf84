"""The rows of a plan for texts that run together."""

from hypothesis import given
from hypothesis import strategies as st

from pliant.cluster.session.cluster_batches import packed_rows


@given(lengths=st.lists(st.integers(1, 64), min_size=1, max_size=64), more=st.integers(0, 4096))
def test_batches_share_few_plans_and_waste_few_rows(lengths: list[int], more: int) -> None:
    """A plan is for one number of rows; no more than an eighth, or one row, belongs to no text."""
    n = sum(lengths)
    rows = packed_rows(lengths, n + more)
    assert n <= rows <= n + more
    assert rows - n <= max(n // 8, 1)
    if len(lengths) == 1:
        assert rows == n


def test_eight_plans_serve_an_octave_of_rows() -> None:
    """With a plan for each sum, most batches would wait for their plan as long as for their run."""
    for least in (32, 64, 128, 256):
        found = {packed_rows((n - 1, 1), 4096) for n in range(least + 1, 2 * least + 1)}
        assert len(found) == 8
