"""Files of fleets: what is refused, and what a seed makes of one."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from pliant.errors import InputError
from research.fleet_world import SlowPeriods, draw_fleet, read_fleet

PATH = Path(__file__).parents[2] / "bench" / "worlds" / "tree.toml"


def test_the_tree_has_a_thousand_nodes_in_three_tiers() -> None:
    """The issue's numbers; each node's upstreams are its ancestors."""
    world = read_fleet(PATH)
    assert [tier.count for tier in world.tiers] == [960, 39, 1]
    fleet = draw_fleet(world, 1000, seed=1)
    assert len(fleet.nodes) == 1000
    for node in fleet.nodes:
        ups = [to for to, _ in node.ups]
        assert [fleet.nodes[to].tier for to in ups] == list(range(node.tier + 1, 3))
        if node.tier == 0:
            assert [to for to, _ in fleet.nodes[ups[0]].ups] == [ups[1]]
    subtrees = np.bincount([node.ups[0][0] for node in fleet.nodes if node.tier == 0])
    assert set(subtrees[subtrees > 0]) == {24, 25}


def test_a_seed_makes_the_same_each_time_and_another_something_else() -> None:
    """What is published must be there again."""
    world = read_fleet(PATH)
    one, again, other = (draw_fleet(world, 3000, seed) for seed in (1, 1, 2))
    assert one.nodes == again.nodes
    assert one.nodes != other.nodes
    for field in ("at_s", "source", "words", "kind", "work", "way"):
        assert np.array_equal(getattr(one.requests, field), getattr(again.requests, field))
        assert not np.array_equal(getattr(one.requests, field), getattr(other.requests, field))


def test_requests_come_as_often_as_the_file_says() -> None:
    """Without bursts: gaps and kinds within four standard deviations; works and ways of mean 1."""
    world = read_fleet(PATH)
    world = msgspec.structs.replace(world, requests=msgspec.structs.replace(world.requests, bursts=()))
    m = 40_000
    found = draw_fleet(world, m, seed=4).requests
    assert len(found) == m
    assert (np.diff(found.at_s) > 0).all()
    assert found.at_s[-1] * world.requests.rate / m == pytest.approx(1.0, abs=4 / m**0.5)
    shares = np.bincount(found.kind) / m
    for kind, share in zip(world.requests.kinds, shares, strict=True):
        assert share == pytest.approx(kind.share, abs=4 * (kind.share * (1 - kind.share) / m) ** 0.5)
    assert found.work.mean() == pytest.approx(1.0, abs=4 * world.spread / m**0.5)
    assert found.way.std() == pytest.approx(world.jitter, rel=0.05)


def test_bursts_bring_more_requests_of_whole_subtrees() -> None:
    """Half of the time twice as many: a rate half as high again, and more of single gateways."""
    world = read_fleet(PATH)
    bursts = (SlowPeriods("gateway", 20.0, 10.0, 2.0),)
    traffic = msgspec.structs.replace(world.requests, bursts=bursts, rate=50.0)
    m = 60_000
    found = draw_fleet(msgspec.structs.replace(world, requests=traffic), m, seed=4).requests
    assert m / found.at_s[-1] / traffic.rate == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("jitter = 0.25", "jiter = 0.25", "jiter"),
        ("count = 39", "count = 3900", "no more machines"),
        ('tier = "cloud", rtt_s = 0.03', 'tier = "device", rtt_s = 0.03', "tiers above"),
        ("lasts_s = 30.0", "lasts_s = 300.0", "cannot be"),
        ("share = 0.35", "share = 0.45", "add up to 1"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(before: str, after: str, said: str, tmp_path: Path) -> None:
    """A misspelt key must not silently mean its default."""
    text = PATH.read_text()
    assert before in text
    path = tmp_path / "tree.toml"
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(InputError, match=said):
        read_fleet(path)
