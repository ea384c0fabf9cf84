"""The promise of placing: tensors alive together never share a byte."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.compiler.executable.place_tensors import ALIGNMENT, Lifetime, Placement, place_tensors
from research.place_exact import place_exactly

lifetimes = st.builds(
    lambda n, a, b: Lifetime(n, min(a, b), max(a, b)),
    st.integers(0, 5000),
    st.integers(0, 12),
    st.integers(0, 12),
)


@given(st.lists(lifetimes, max_size=24))
def test_tensors_alive_together_never_share_a_byte(tensors: list[Lifetime]) -> None:
    """A shared byte is a wrong answer that no shape check sees."""
    check(tensors, place_tensors(tensors))


def check(tensors: list[Lifetime], placed: Placement) -> None:
    """All aligned, all within the block, none in another's way."""
    for i, a in enumerate(tensors):
        assert placed.offsets[i] % ALIGNMENT == 0
        assert placed.offsets[i] + a.n_bytes <= placed.n_bytes
        for j, b in enumerate(tensors[:i]):
            if a.overlaps(b) and a.n_bytes and b.n_bytes:
                apart = (
                    placed.offsets[i] + a.n_bytes <= placed.offsets[j]
                    or placed.offsets[j] + b.n_bytes <= placed.offsets[i]
                )
                assert apart


@given(st.lists(lifetimes, min_size=1, max_size=24))
def test_the_arena_is_no_larger_than_all_tensors_side_by_side(tensors: list[Lifetime]) -> None:
    """Reuse may fail to help, but must never cost."""
    assert place_tensors(tensors).n_bytes <= sum(t.n_bytes + ALIGNMENT for t in tensors)


def test_disjoint_lifetimes_share_the_same_bytes() -> None:
    """The reason the arena exists."""
    assert place_tensors([Lifetime(640, 0, 1), Lifetime(640, 2, 3)]).n_bytes == 640


@given(st.lists(lifetimes, min_size=1, max_size=7))
@settings(max_examples=25, deadline=None)
def test_greed_against_the_exact_optimum(tensors: list[Lifetime]) -> None:
    """The optimum is valid, no larger than that of greed, and no smaller than what is alive at once."""
    greedy, exact = place_tensors(tensors), place_exactly(tensors)
    check(tensors, exact)
    assert exact.n_bytes < greedy.n_bytes + ALIGNMENT  # it counts in units of the alignment
    alive = max(sum(t.n_bytes for t in tensors if t.first <= step <= t.last) for step in range(13))
    assert exact.n_bytes >= alive
