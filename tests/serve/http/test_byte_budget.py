"""Whose bytes make room for others'."""

from hypothesis import given
from hypothesis import strategies as st

from pliant.serve.http.byte_budget import ByteBudget


class Holder:
    """One that says whether it was evicted."""

    def __init__(self, address: str = "a") -> None:
        self.address = address
        self.is_evicted = False

    def evict(self) -> None:
        assert not self.is_evicted
        self.is_evicted = True


def test_a_body_that_stands_still_makes_room_for_one_that_comes() -> None:
    """Sixty of 16 MB, none ever complete, took a gigabyte."""
    budget = ByteBudget(100, 60)
    stalled = [Holder() for _ in range(20)]
    for holder in stalled:
        assert budget.take(holder, 15)
    assert sum(holder.is_evicted for holder in stalled) == 16
    assert budget.n_bytes == 60
    assert budget.take(Holder(), 50)
    assert all(holder.is_evicted for holder in stalled)


def test_an_address_within_its_share_takes_from_the_one_with_most() -> None:
    """Not from itself, and not from a small one."""
    budget = ByteBudget(100, 60)
    small, *large = Holder("small"), Holder("large"), Holder("large")
    for holder, n_bytes in ((small, 20), (large[0], 40), (large[1], 20)):
        assert budget.take(holder, n_bytes)
    assert budget.take(Holder("third"), 30)
    assert [holder.is_evicted for holder in (small, *large)] == [False, True, False]


def test_what_is_kept_is_never_taken_and_who_comes_then_is_refused() -> None:
    """A whole request that waits for the model has a right to its answer."""
    budget = ByteBudget(100, 60)
    kept = Holder()
    budget.take(kept, 60)
    budget.keep(kept)
    assert not budget.take(Holder(), 1)
    assert budget.take(Holder("b"), 40)
    assert not kept.is_evicted
    budget.release(kept)
    assert budget.n_bytes == 40


def test_the_slowest_is_refused_itself() -> None:
    """The oldest body that is not complete gives way, even where it is the one that asks for more."""
    budget = ByteBudget(100, 60)
    slow, quick = Holder(), Holder()
    budget.take(slow, 10)
    budget.take(quick, 50)
    assert not budget.take(slow, 1)
    assert not quick.is_evicted


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.sampled_from(["take", "keep", "release"])))
)
def test_no_more_is_held_than_may_be(events: list[tuple[int, int, str]]) -> None:
    """In all and for each address, and what is counted is what holders have."""
    budget = ByteBudget(100, 60)
    holders = [Holder("abc"[i % 3]) for i in range(6)]
    sizes = dict.fromkeys(holders, 0)
    for i, n_bytes, event in events:
        holder = holders[i]
        if event == "take":
            sizes[holder] += n_bytes if budget.take(holder, n_bytes) else 0
        elif event == "keep":
            budget.keep(holder)
        else:
            budget.release(holder)
            sizes[holder] = 0
        for other in holders:
            if other.is_evicted:
                sizes[other], other.is_evicted = 0, False
        assert budget.n_bytes == sum(sizes.values()) <= 100
        for address in "abc":
            assert sum(n for other, n in sizes.items() if other.address == address) <= 60
