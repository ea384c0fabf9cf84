"""What moving bytes takes, by hand."""

import math

import pytest

from pliant.errors import ProfileError
from pliant.ir.link import Link


def test_every_transfer_pays_the_latency_and_every_byte_its_time() -> None:
    """A disk's reads and a network's messages alike: several small ones cost more than one large one."""
    disk = Link(0.5, 100.0)
    assert disk.seconds(200) == 2.5
    assert disk.seconds(200, 3) == 3.5
    assert disk.seconds(200, 0) == 2.0
    assert disk.times(2.0).seconds(200, 3) == 7.0


def test_a_link_may_be_as_quick_as_can_be() -> None:
    """A pair that only its interfaces bound has no bandwidth of its own."""
    assert Link(0.25, math.inf).seconds(1 << 30) == 0.25


@pytest.mark.parametrize(
    ("latency_s", "rate"),
    [(-0.1, 1.0), (math.inf, 1.0), (math.nan, 1.0), (0.1, 0.0), (0.1, math.nan)],
)
def test_a_link_that_cannot_be_is_not_built(latency_s: float, rate: float) -> None:
    """A plan made from it would be wrong without a word."""
    with pytest.raises(ProfileError, match="measure again"):
        Link(latency_s, rate)
