"""The longest input that devices have memory for, against asking for a plan of every length."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from pliant.api.open_cluster import Cluster
from pliant.api.open_encoder import open_encoder
from pliant.cluster.lead.choose_partition import make_chooser
from pliant.cluster.lead.partition_cache import PartitionCache
from pliant.cluster.lead.predict import Prediction
from pliant.cluster.net.key import new_key
from pliant.cluster.session.length_reach import LengthReach
from pliant.cluster.watch.adapt import Topology, find_overloaded
from pliant.errors import BudgetError
from pliant.ir.curve import OUT_OF_REACH_S
from pliant.plan.split.activation_bytes import memory_bytes, whole_memory_bytes
from tests.cluster.test_clustered import write_key
from tests.plan.clusters import cluster
from tests.plan.splits import bert
from tests.serve.nodes import PATIENCE_S, running

SPEC = replace(bert(24, 4, 32, 2), max_rows=28)


def short_of_memory(seed: int) -> Topology:
    """Two devices, none of which has memory for the longest inputs."""
    devices, links = cluster(seed, 2)
    rng, whole = np.random.default_rng(seed), whole_memory_bytes(SPEC, 16)
    rooms = {
        name: replace(one, free_bytes=int(whole * rng.uniform(0.4, 1.1))) for name, one in devices.items()
    }
    return Topology(rooms, links)


def solver(topology: Topology, cache: PartitionCache) -> Callable[[int], Prediction]:
    """Plans by a search for every length."""

    def solve(n: int) -> Prediction:
        cache.clear()
        return cache.get(
            SPEC,
            n,
            topology,
            lambda: make_chooser()(SPEC, n, topology.capabilities, topology.links, "d0"),
            may_pause=False,
        )

    return solve


@pytest.mark.parametrize("seed", [0, 4])
def test_every_length_up_to_the_longest_has_a_plan_that_fits(seed: int) -> None:
    """And none of those a sixteenth longer has one, so that levels promise what can be answered."""
    topology, cache, reach = short_of_memory(seed), PartitionCache(lambda: 0.0), LengthReach()
    solve = solver(topology, cache)
    longest = reach.search(SPEC, solve)
    cache.keep(SPEC, longest)
    assert reach.most_n == longest.tokens < SPEC.max_rows
    for n in range(1, longest.tokens + 1):
        assert not find_overloaded(memory_bytes(SPEC, solve(n).partition), topology)
    for n in {min(longest.tokens + longest.tokens // 16 + 1, SPEC.max_rows), SPEC.max_rows}:
        with pytest.raises(BudgetError, match=f"activations of {n} rows"):
            solve(n)


def test_memory_for_all_lengths_is_no_limit() -> None:
    """No search is needed for it but the first."""
    devices, links = cluster(0, 2)
    asked, topology = [], Topology(devices, links)
    solve = solver(topology, PartitionCache(lambda: 0.0))
    reach = LengthReach()
    assert reach.search(SPEC, lambda n: asked.append(n) or solve(n)).tokens == SPEC.max_rows
    assert reach.most_n is None
    assert len(asked) == 1
    assert not reach.is_stale(topology)


def test_it_is_searched_again_when_memory_falls_or_grows() -> None:
    """A few bytes more are no reason: other processes take and give such all the time."""
    topology, reach = short_of_memory(4), LengthReach()
    reach.search(SPEC, solver(topology, PartitionCache(lambda: 0.0)))

    def with_memory(factor: float) -> Topology:
        rooms = {
            n: replace(d, free_bytes=int(factor * d.free_bytes)) for n, d in topology.capabilities.items()
        }
        return replace(topology, capabilities=rooms)

    assert [reach.is_stale(with_memory(factor)) for factor in (0.8, 1.0, 1.1, 1.5)] == [
        True,
        False,
        False,
        True,
    ]


def test_a_refused_length_is_out_of_reach_at_once() -> None:
    """Memory may fall between two searches."""
    reach = LengthReach()
    reach.refuse(30)
    reach.refuse(35)
    assert reach.most_n == 29


def test_the_longest_text_that_devices_have_memory_for_is_told_and_longer_ones_refused(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Every length is really asked: those up to the longest are answered, others refused with that number."""
    key, model = write_key(tmp_path / "key", new_key()), str(tiny_model("bert"))
    memory = whole_memory_bytes(open_encoder(model, tmp_path).spec, 9)
    with (
        Cluster("127.0.0.1:0", key=key, threads=1, cache=tmp_path, memory=memory) as cluster,
        cluster.open(model) as session,
    ):
        assert session.curve().at(10) >= OUT_OF_REACH_S > session.curve().at(9)
        assert session.most_length() == session.levels()[-1].most_n == 9
        for n in range(1, session.max_length + 1):
            request = session.request(session.sample(n))
            assert session.compiling(request) is not None
            if n <= 9:
                assert session.answer(request).length == n
                assert session.compiling(request) is None
                continue
            for ask in (session.estimate, session.answer):
                with pytest.raises(BudgetError, match=f"length {n} needs more memory .* enough for 9"):
                    ask(request)
        with running(session) as node:
            tensor = {"name": "ids", "shape": [1, 12], "datatype": "INT64", "data": [5] * 12}
            types = {"name": "types", "shape": [1, 12], "datatype": "INT64", "data": [0] * 12}
            url = f"{node.url}/v2/models/{session.name}/infer"
            given = [one for one in (tensor, types) if one["name"] in {p.name for p in session.inputs}]
            refused = httpx.post(url, json={"inputs": given}, timeout=PATIENCE_S)
            assert refused.status_code == 422
            assert "takes the longest, up to 9" in refused.text
