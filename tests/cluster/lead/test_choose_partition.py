"""What a cluster runs of what a planner finds."""

import pytest

from pliant.cluster.lead.choose_partition import make_chooser
from pliant.cluster.lead.predict import predict
from pliant.cluster.net.activation_coding import Coding, scale_links
from pliant.cluster.watch.adapt import Topology
from pliant.errors import InputError
from pliant.ir.capability import Capability, Interface, Links
from pliant.ir.partition import Partition, Share
from pliant.plan.split.stage_graphs import weight_bytes
from tests.plan.splits import bert

SPEC, TOKENS = bert(), 16
DEVICE = Capability(1.0, 1e9, 1 << 30)


def participants(bandwidth_Bps: float) -> tuple[str, ...]:
    links = Links({name: Interface(bandwidth_Bps, bandwidth_Bps) for name in "ab"})
    return make_chooser()(SPEC, TOKENS, {"a": DEVICE, "b": DEVICE}, links, "a").participants


def test_a_split_that_promises_little_is_not_run() -> None:
    """A prediction is off by more than a few percent, and a device alone has nobody to wait for."""
    assert participants(1e9) == ("a", "b")
    assert participants(1e3) == ("a",)


def test_one_device_that_has_no_memory_for_all_does_not_forbid_a_split() -> None:
    """However little it saves: nobody could run the model alone."""
    whole = sum(
        weight_bytes(SPEC, Partition("ws", "a", (Share("a", SPEC.n_heads, TOKENS),), TOKENS)).values()
    )
    small = Capability(1.0, 1e9, 9 * whole // 10)
    links = Links({name: Interface(1e5, 1e5) for name in "ab"})
    assert make_chooser()(SPEC, TOKENS, {"a": small, "b": small}, links, "a").participants == ("a", "b")


def test_coedges_shares_are_weight_stationary() -> None:
    """As the paper runs it (5.3)."""
    links = Links({name: Interface(1e9, 1e9) for name in "ab"})
    partition = make_chooser(shares="coedge")(SPEC, TOKENS, {"a": DEVICE, "b": DEVICE}, links, "a")
    assert partition.mode == "ws"
    assert partition.share("a").rows == partition.share("b").rows == TOKENS // 2
    with pytest.raises(InputError, match="weight-stationary"):
        make_chooser("1d", "coedge")


def test_a_mode_asked_for_by_name_is_solved_too() -> None:
    """The quicker of two devices takes more of the model in every mode."""
    links = Links({name: Interface(1e9, 1e9) for name in "ab"})
    devices = {"a": Capability(4.0, 1e9, 1 << 30), "b": DEVICE}
    for mode in ("ws", "1d", "2d"):
        partition = make_chooser(mode)(SPEC, TOKENS, devices, links, "a")
        assert partition.mode == mode
        assert partition.share("b").rows > partition.share("a").rows


@pytest.mark.parametrize("coding", ["fp16", "int8"])
def test_shares_are_planned_with_the_bytes_that_travel(coding: Coding) -> None:
    """Where float32 does not pay for a second device, half or a quarter of it may; it is no worse plan."""
    gained = []
    for bandwidth_Bps in (1e6, 1e7, 3e7, 5e7, 7e7, 1e8, 1e9):
        topology = Topology(
            dict.fromkeys("ab", DEVICE), Links(dict.fromkeys("ab", Interface(bandwidth_Bps, bandwidth_Bps)))
        )
        plans = [
            make_chooser()(SPEC, TOKENS, topology.capabilities, links, "a")
            for links in (topology.links, scale_links(topology.links, coding))
        ]
        plain_s, coded_s = (predict(SPEC, plan, topology, coding).seconds for plan in plans)
        gained.append(plain_s / coded_s)
        assert len(plans[1].participants) >= len(plans[0].participants)
    assert min(gained) > 0.97
    assert max(gained) > 1.1
    assert scale_links(topology.links, "fp32") is topology.links
