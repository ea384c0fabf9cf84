"""A partition that does not fit cannot be built, and ranges follow from the order of the shares."""

from collections.abc import Callable

import pytest

from pliant.errors import InputError
from pliant.ir.partition import DeviceGrid, Partition, Share


def two(**changes: int) -> Partition:
    """Table 3's partition: 2 of 16 heads and 32 of 256 rows on the primary."""
    return Partition("ws", "a", (Share("a", 2, 32), Share("b", 14, 224, **changes)), 256)


def test_ranges_follow_from_the_order_of_the_shares() -> None:
    """Counts travel, ranges are what computes: both ends must derive the same ones."""
    p = two()
    assert (p.heads("a"), p.heads("b")) == (range(0, 2), range(2, 16))
    assert (p.rows("a"), p.rows("b")) == (range(0, 32), range(32, 256))
    assert p.columns("b") == range(0)


def test_a_device_without_a_share_takes_no_part() -> None:
    """A planner leaves a slow device out by giving it nothing; it is still known."""
    p = Partition("ws", "a", (Share("a", 4, 8), Share("b")), 8)
    assert p.participants == ("a",)
    assert p.devices == ("a", "b")


def test_a_columns_neurons_stand_together_in_a_grid() -> None:
    """A tile of the feed forward is one block of the weights, so a grid column's ranges must touch."""
    shares = tuple(Share(d, 1, 2, n) for d, n in zip("abcd", (3, 4, 5, 6), strict=True))
    p = Partition("2d", "c", shares, 8, DeviceGrid((("a", "b"), ("c", "d")), (3, 5), (4, 4)))
    assert [p.columns(d) for d in "acbd"] == [range(0, 3), range(3, 8), range(8, 12), range(12, 18)]
    assert p.heads("c") == range(2, 3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Share("a", heads=-1), "cannot take -1 heads"),
        (lambda: Share("a/b"), "not a device's name"),
        (lambda: Share(""), "not a device's name"),
        (lambda: two(columns=3), "cuts none"),
        (lambda: Partition("1d", "a", (Share("a", 1, 4),), 4), "needs all of them"),
        (lambda: Partition("ws", "a", (Share("a", 1, 4),), 5), "4 rows do not make 5"),
        (lambda: Partition("ws", "a", (Share("a", 1, 0),), 0), "0 tokens"),
        (lambda: Partition("ws", "z", (Share("a", 1, 4),), 4), "primary 'z'"),
        (lambda: Partition("ws", "a", (Share("a", 1, 4), Share("a")), 4), "more than once"),
        (lambda: Partition("ws", "a", (Share("a", 0, 4),), 4), "no device takes a head"),
        (lambda: Partition("2d", "a", (Share("a", 1, 4, 2),), 4), "needs a grid"),
        (
            lambda: Partition("ws", "a", (Share("a", 1, 4),), 4, DeviceGrid((("a",),), (2,), (2,))),
            "takes no grid",
        ),
        (
            lambda: Partition("2d", "a", (Share("a", 1, 4, 2),), 4, DeviceGrid((("b",),), (2,), (2,))),
            "need shares",
        ),
        (lambda: DeviceGrid((("a", "b"), ("c",)), (1, 1), (1, 1)), "as many devices each"),
        (lambda: DeviceGrid((("a",), ("a",)), (2,), (1, 1)), "more than once"),
        (lambda: DeviceGrid((("a", "b"),), (2,), (2,)), "as many hidden blocks"),
        (lambda: DeviceGrid((("a", "b"),), (2, 1), (2,)), "do not cut one hidden size"),
        (lambda: two().rows("a") and two().share("z"), "not a device of this partition"),
    ],
)
def test_what_does_not_fit_is_refused(build: Callable[[], object], message: str) -> None:
    """A partition crosses the network: what cannot run must fail where it is made, naming the number."""
    with pytest.raises(InputError, match=message):
        build()
