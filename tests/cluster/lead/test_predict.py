"""What run time shows of links, beside what was predicted."""

import pytest

from pliant.cluster.control.messages import Note
from pliant.cluster.lead.predict import MOST_AT_ONCE, Solved, link_ratios, predict
from pliant.cluster.watch.adapt import Picture
from pliant.ir.partition import Partition, Share
from pliant.ir.topology import Capability, Interface, Links, refreshed_links
from tests.plan.splits import bert

SPEC, TOKENS = bert(), 16
BANDWIDTH = 1e8


def solved() -> Solved:
    half = SPEC.n_heads // 2, TOKENS // 2
    partition = Partition("ws", "p", (Share("p", *half), Share("a", SPEC.n_heads - half[0], half[1])), TOKENS)
    device = Capability(1.0, 1e9, 1 << 30)
    links = Links({name: Interface(BANDWIDTH, BANDWIDTH) for name in "pa"})
    return predict(SPEC, partition, Picture({"p": device, "a": device}, links))


def settled(plan: Solved, links: Links, slower: float) -> Links:
    """After many layers in which every byte took so many times longer than planned."""
    pairs = (("p", "a"), ("a", "p"))
    notes = {
        dst: Note(0.0, 0, {}, {src: (1000, 1000 * plan.byte_s[src, dst] * slower)}) for src, dst in pairs
    }
    for _ in range(60):
        links = refreshed_links(links, link_ratios(plan, links, notes, {}))
    return links


@pytest.mark.parametrize("slower", [1.0, 3.0, 40.0])
def test_a_link_that_stays_slow_is_found_and_not_overshot(slower: float) -> None:
    """Each layer's times are held against the links as known by now: held against the plan's, the same
    slowness would count again in every layer, without end."""
    plan = solved()
    slow = settled(plan, plan.picture.links, slower)
    again = settled(plan, slow, 1.0)
    for src, dst in (("p", "a"), ("a", "p")):
        assert slow.link(src, dst).bandwidth_Bps == pytest.approx(BANDWIDTH / slower, rel=0.01)
        assert again.link(src, dst).bandwidth_Bps == pytest.approx(BANDWIDTH, rel=0.01)


def test_one_stall_is_no_slow_link() -> None:
    """A core that was taken away for a moment must not cost the plan its workers."""
    plan = solved()
    notes = {"p": Note(0.0, 0, {}, {"a": (1000, 1e4 * plan.byte_s["a", "p"] * 1000)})}
    assert link_ratios(plan, plan.picture.links, notes, {}) == {("a", "p"): MOST_AT_ONCE}


def test_clocks_that_differ_are_set_off() -> None:
    """A worker's clock starts when its machine does."""
    plan = solved()
    took_s = 1000 * plan.byte_s["a", "p"]
    notes = {"p": Note(0.0, 0, {}, {"a": (1000, took_s - 500.0)})}
    found = link_ratios(plan, plan.picture.links, notes, {"a": 500.0})
    assert found["a", "p"] == pytest.approx(1.0, rel=1e-3)


def test_who_is_gone_says_nothing_about_links() -> None:
    """Its last note may still lie here."""
    plan = solved()
    links = Links({"p": Interface(BANDWIDTH, BANDWIDTH)})
    assert link_ratios(plan, links, {"p": Note(0.0, 0, {}, {"a": (1000, 1.0)})}, {}) == {}
