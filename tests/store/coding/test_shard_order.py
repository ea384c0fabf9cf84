"""The order of a layer's file by what it is for: how many reads each submodel's load takes."""

from hypothesis import given
from hypothesis import strategies as st

from pliant.store.coding.shard_order import BASE_PLANES, FULL, count_runs, file_order, file_places

N_PLANES = 6
models = st.integers(1, 16).flatmap(
    lambda n: st.tuples(st.just(n), st.sets(st.integers(1, n), min_size=1).map(sorted).map(tuple))
)


def reads(n_slices: int, widths: tuple[int, ...], m: int, parts: range) -> int:
    places = file_places(n_slices, widths)
    return count_runs(places[part][s] for part in parts for s in range(m))


@given(models)
def test_every_shard_has_exactly_one_place(model: tuple[int, tuple[int, ...]]) -> None:
    """A shard that stood nowhere, or twice, would be lost or waste a file."""
    n, widths = model
    places = file_places(n, widths)
    assert sorted(p for part in places for p in part) == list(range((N_PLANES + 1) * n))
    at = 0
    for cell in file_order(n, widths):
        assert places[cell.part][cell.first : cell.first + cell.count] == tuple(range(at, at + cell.count))
        at += cell.count


@given(models, st.integers(1, N_PLANES))
def test_narrowest_and_whole_width_are_one_read_at_any_bits(
    model: tuple[int, tuple[int, ...]], bits: int
) -> None:
    """What small targets run, and what large ones run; an ordinary model has only its whole width."""
    n, widths = model
    assert reads(n, widths, widths[0], range(bits)) == 1
    assert bits == 1 or reads(n, widths, n, range(bits)) == 1


@given(models, st.data())
def test_every_width_takes_as_few_reads_as_the_format_says(
    model: tuple[int, tuple[int, ...]], data: st.DataObject
) -> None:
    """The table in docs/format.md: base planes are one read, and so on."""
    n, widths = model
    m = data.draw(st.sampled_from(widths))
    assert reads(n, widths, m, range(BASE_PLANES)) == 1
    for bits in range(BASE_PLANES, N_PLANES + 1):
        assert reads(n, widths, m, range(bits)) <= (1, 2, 2, 3, 3)[bits - BASE_PLANES]
    for plane in range(BASE_PLANES, N_PLANES):
        assert reads(n, widths, m, range(plane, plane + 1)) <= (1 if m == widths[0] else 2)
    assert reads(n, widths, m, range(FULL, FULL + 1)) == 1
