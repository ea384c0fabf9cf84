"""What a cluster runs of what a planner finds."""

import pytest

from pliant.cluster.choose import LEAST_GAIN, chooser
from pliant.errors import InputError
from pliant.ir.cluster import Capability, Interface, Links
from pliant.ir.partition import Partition, Share
from pliant.plan.parts import weight_bytes
from tests.plan.splits import bert

SPEC, TOKENS = bert(), 16
DEVICE = Capability(1.0, 1e9, 1 << 30)


def participants(bandwidth_Bps: float) -> tuple[str, ...]:
    links = Links({name: Interface(bandwidth_Bps, bandwidth_Bps) for name in "ab"})
    return chooser()(SPEC, TOKENS, {"a": DEVICE, "b": DEVICE}, links, "a").participants


def test_a_split_that_promises_little_is_not_run() -> None:
    """A prediction is off by more than a few percent, and a device alone has nobody to wait for."""
    assert participants(1e9) == ("a", "b")
    assert participants(1e3) == ("a",)
    assert all(0.05 <= gain <= 0.3 for gain in LEAST_GAIN.values())


def test_one_device_that_has_no_memory_for_all_does_not_forbid_a_split() -> None:
    """However little it saves: nobody could run the model alone."""
    whole = sum(
        weight_bytes(SPEC, Partition("ws", "a", (Share("a", SPEC.n_heads, TOKENS),), TOKENS)).values()
    )
    small = Capability(1.0, 1e9, 9 * whole // 10)
    links = Links({name: Interface(1e5, 1e5) for name in "ab"})
    assert chooser()(SPEC, TOKENS, {"a": small, "b": small}, links, "a").participants == ("a", "b")


def test_coedges_shares_are_weight_stationary() -> None:
    """As the paper runs it (5.3)."""
    links = Links({name: Interface(1e9, 1e9) for name in "ab"})
    partition = chooser(shares="coedge")(SPEC, TOKENS, {"a": DEVICE, "b": DEVICE}, links, "a")
    assert partition.mode == "ws"
    assert partition.share("a").rows == partition.share("b").rows == TOKENS // 2
    with pytest.raises(InputError, match="weight-stationary"):
        chooser("1d", "coedge")


def test_a_mode_asked_for_by_name_is_solved_too() -> None:
    """The quicker of two devices takes more of the model in every mode."""
    links = Links({name: Interface(1e9, 1e9) for name in "ab"})
    devices = {"a": Capability(4.0, 1e9, 1 << 30), "b": DEVICE}
    for mode in ("ws", "1d", "2d"):
        partition = chooser(mode)(SPEC, TOKENS, devices, links, "a")
        assert partition.mode == mode
        assert partition.share("b").rows > partition.share("a").rows
