"""World files of requests under deadlines: what is refused, and what a seed makes of one."""

from datetime import datetime, timedelta
from math import inf
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import InputError
from research.deadline_world import (
    Interval,
    LinkWindow,
    World,
    arrivals,
    draw,
    read_link,
    read_seeds,
    read_words,
    read_world,
)

FOLDER = Path(__file__).parents[2] / "bench" / "worlds"
NAMES = sorted({path.stem for path in FOLDER.glob("*.toml")} - {"seeds", "words", "tree", "known"})
_BEGINS = datetime(2016, 11, 1)


def traces_of(folder: Path, world: World, trips_ms: float = 150.0, mbit: float = 8.0) -> Path:
    """Traces long enough for every window of a world, each row of the same value."""
    for window in world.links:
        rows = [
            f"{_BEGINS + timedelta(minutes=4 * i)};{trips_ms};0"
            for i in range(window.row + int(world.duration_s / world.row_s) + 2)
        ]
        ripe = folder / "ripe_atlas" / f"{window.ripe}.csv"
        ripe.parent.mkdir(exist_ok=True)
        if not ripe.exists() or len(ripe.read_text().splitlines()) <= len(rows):
            ripe.write_text("\n".join(["epoch;rtt;cp", *rows]))
        lumos = folder / "lumos5g" / window.lumos
        lumos.parent.mkdir(parents=True, exist_ok=True)
        lumos.write_text("\n".join(f"{i + 1}.0 {mbit}" for i in range(1000)))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_every_world_reads_and_a_seed_makes_the_same_of_it_each_time(name: str, tmp_path: Path) -> None:
    """What settings were chosen by, and what they are judged by, must be there again."""
    world, words = read_world(FOLDER / f"{name}.toml"), read_words(FOLDER / "words.toml")
    traces = traces_of(tmp_path, world)
    made = draw(world, name, 1, words, traces)
    assert made == draw(world, name, 1, words, traces)
    assert made.requests != draw(world, name, 2, words, traces).requests
    assert made.requests != draw(world, "another", 1, words, traces).requests
    assert [r.number for r in made.requests] == list(range(len(made.requests)))
    assert all(0 <= r.at_s < world.duration_s for r in made.requests)
    known = {(kind.deadline_s, kind.floor) for kind in world.requests.kinds}
    assert {(r.deadline_s, r.floor) for r in made.requests} <= known
    assert made.workers.keys() == world.workers.keys()
    link = made.link.at(world.duration_s / 2.0, 0.0)
    assert link is not None
    assert (link.latency_s, link.bandwidth_Bps) == (0.15, 1e6)


def test_held_out_seeds_are_twenty_and_no_tuning_seeds() -> None:
    """The issue's numbers; a file with a seed in both is refused."""
    seeds = read_seeds(FOLDER / "seeds.toml")
    assert (len(seeds.tuning), len(seeds.held_out)) == (3, 20)
    assert not set(seeds.tuning) & set(seeds.held_out)


def test_six_worlds_at_least_say_why_no_single_way_is_enough() -> None:
    """The evaluation's bar is for such worlds alone."""
    told = [read_world(FOLDER / f"{name}.toml").arithmetic for name in NAMES]
    assert sum(all(way in text for way in ("Local:", "Upstream:", "Cluster:")) for text in told) >= 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tuning = [1]\nheld_out = [1]", "not held out"),
        ("tuning = [1]\nheld_out = [2]\nmore = 3", "more"),
        ("tuning = 1\nheld_out = [2]", "tuning"),
        ("tuning = [", "seeds.toml"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(text: str, said: str, tmp_path: Path) -> None:
    """A misspelt key must not silently mean its default."""
    path = tmp_path / "seeds.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_seeds(path)


def test_arrivals_are_as_many_as_the_rate_says() -> None:
    """Within four standard deviations of a Poisson count, in bursts and outside of them."""
    bursts = [Interval(100.0, 300.0, 3.0)]
    times = np.array(arrivals(5.0, bursts, 1000.0, np.random.default_rng(0)))
    inside = int(((times >= 100.0) & (times < 300.0)).sum())
    assert abs(inside - 3000) <= 4 * 3000**0.5
    assert abs(len(times) - inside - 4000) <= 4 * 4000**0.5
    assert (np.diff(times) > 0).all()


def test_a_device_that_is_gone_takes_for_ever_whatever_slows_it(tmp_path: Path) -> None:
    """Intervals of both kinds may overlap."""
    world = read_world(FOLDER / "neighbours.toml")
    made = draw(world, "neighbours", 1, read_words(FOLDER / "words.toml"), traces_of(tmp_path, world))
    a = made.workers["a"]
    first = world.workers["a"].gone[0]
    middle_s = (first.from_s + first.to_s) / 2.0
    assert a.seconds(middle_s) == inf
    assert a.seconds(0.0) == world.workers["a"].whole_s
    assert a.seconds(world.duration_s) == world.workers["a"].whole_s


def test_a_link_follows_both_traces_row_by_row(tmp_path: Path) -> None:
    """Round trips change every `row_s`, throughputs every second of the clock; 0 Mbit/s is nearly nothing."""
    world = read_world(FOLDER / "commuter.toml")
    window = LinkWindow("x", 1, "5g/y", 2)
    (tmp_path / "ripe_atlas").mkdir()
    rows = [f"{_BEGINS + timedelta(minutes=4 * i)};{-1 if i == 2 else 100 + i};0" for i in range(40)]
    (tmp_path / "ripe_atlas" / "x.csv").write_text("\n".join(["epoch;rtt;cp", *rows]))
    (tmp_path / "lumos5g" / "5g").mkdir(parents=True)
    (tmp_path / "lumos5g" / "5g" / "y").write_text("\n".join(f"{i}.0 {[8, 0][i % 2]}" for i in range(80)))
    link = read_link(window, tmp_path, world)
    at = [link.at(now_s, 0.0) for now_s in (0.0, 0.9, 1.0, 2.5, 4.0)]
    assert [None if one is None else one.latency_s for one in at] == [0.101, 0.101, 0.101, None, 0.103]
    assert [None if one is None else one.bandwidth_Bps for one in at] == [1e6, 1e6, 1e3, None, 1e6]
    with pytest.raises(InputError, match="ends before"):
        read_link(LinkWindow("x", 30, "5g/y", 2), tmp_path, world)
