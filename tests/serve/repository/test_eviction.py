"""Which models leave memory: compared with every set that there is."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.serve.repository.eviction import EvictableModel, choose_evictions

_LOADED = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=7)


@settings(deadline=None, max_examples=300)
@given(_LOADED, st.integers(0, 40))
def test_the_choice_is_the_best_of_all_sets_that_free_enough(
    loaded: list[tuple[int, int]], short_bytes: int
) -> None:
    """Best: its latest used model was used the earliest, then its second latest, and so on."""
    models = [EvictableModel(i, frees, float(used)) for i, (frees, used) in enumerate(loaded)]
    rank = {one.key: at for at, one in enumerate(sorted(models, key=lambda one: one.last_used_s))}
    enough = [
        chosen
        for n in range(len(models) + 1)
        for chosen in combinations(models, n)
        if sum(one.frees_bytes for one in chosen) >= short_bytes
    ]
    found = choose_evictions(models, short_bytes)
    if not enough:
        assert found is None
        return
    best = min(enough, key=lambda chosen: sorted((rank[one.key] for one in chosen), reverse=True))
    assert found is not None
    assert list(found) == sorted((one.key for one in best), key=rank.__getitem__)


def test_the_least_recently_used_goes_first() -> None:
    """And nothing goes whose room is not needed."""
    models = [
        EvictableModel("old", 10, 1.0),
        EvictableModel("new", 10, 3.0),
        EvictableModel("middle", 10, 2.0),
    ]
    assert choose_evictions(models, 0) == ()
    assert choose_evictions(models, 10) == ("old",)
    assert choose_evictions(models, 11) == ("old", "middle")
    assert choose_evictions(models, 31) is None


def test_a_large_model_spares_the_older_ones_that_do_not_help() -> None:
    """The old one would have to go for nothing."""
    models = [EvictableModel("old", 10, 1.0), EvictableModel("new", 100, 2.0)]
    assert choose_evictions(models, 50) == ("new",)
