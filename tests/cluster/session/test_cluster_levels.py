"""A cluster that answers by submodels of the model that it holds: right, as accurate as told, and in time."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.api.open_cluster import Cluster
from pliant.cluster.lead.predict import Prediction, predict
from pliant.cluster.net.key import new_key
from pliant.cluster.session.cluster_levels import (
    AnswerDelays,
    ClusterLevels,
    levels_by,
    pick_level,
    submodels,
    times_of_parts,
)
from pliant.cluster.session.cluster_session import ClusterSession
from pliant.cluster.watch.adapt import Topology
from pliant.errors import BudgetError, ModelError
from pliant.ir.capability import Capability, Interface, Links
from pliant.ir.curve import Curve
from pliant.ir.endpoint import Request, ServiceLevel
from pliant.ir.partition import Partition, Share
from pliant.ir.times.timing import Timing
from pliant.models.encoder.encoder_source import Encoder, parse_identity
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.tokenizer import open_tokenizer
from tests.cluster.fakes import SyntheticSource
from tests.cluster.processes import workers
from tests.cluster.test_clustered import write_key
from tests.graded_store import graded_store
from tests.plan.splits import bert
from tests.reference_model import run_model
from tests.serve.nodes import PATIENCE_S

store = graded_store

TEXT = "a charming film"
WIDTHS, N_LAYERS = (2, 4), 4


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("bert", n_layers=N_LAYERS, widths=WIDTHS)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_key(tmp_path_factory.mktemp("key") / "key", new_key())


@pytest.fixture
def session(key: Path, store: Path) -> Iterator[ClusterSession]:
    """Of a primary alone, which measures nothing."""
    with Cluster("127.0.0.1:0", key=key, threads=1, shares="equal") as cluster:
        yield cluster.open(str(store))


def asked(session: ClusterSession, floor: float | None = None, deadline_s: float | None = None) -> Request:
    request = session.request({"text": np.array([TEXT.encode()], object)})
    return replace(request, accuracy_floor=floor, deadline_s=deadline_s)


def wanted(model: Path, n: int, m: int) -> np.ndarray:
    """By float64 numpy, of the checkpoint's own weights."""
    found = open_checkpoint(model)
    tensors = {name: found.tensor(name) for name in found.stored}
    encoded = open_tokenizer(model, found.spec).encode(TEXT)
    return run_model(found.spec, tensors, encoded.ids, encoded.types, n, m)


def check_every_level(session: ClusterSession, model: Path) -> None:
    session.curve()
    for level in session.levels():
        reply = session.answer(asked(session, level.accuracy))
        layers = reply.details.partitions[1:-1]
        n, m = len(layers), layers[0].n_heads
        assert reply.accuracy == level.accuracy
        assert reply.outputs["logits"][0] == pytest.approx(wanted(model, n, m), abs=1e-4)


def test_each_floor_is_answered_by_a_submodel_as_accurate(session: ClusterSession, model: Path) -> None:
    """The narrowest width, and the whole model: each equal to float64 numpy."""
    check_every_level(session, model)
    ran = session.answer(asked(session, session.levels()[0].accuracy)).details.partitions[1:-1]
    assert {one.n_heads for one in ran} == {WIDTHS[0]}
    whole = session.answer(asked(session)).details.partitions[1:-1]
    assert (len(whole), whole[0].n_heads) == (N_LAYERS, WIDTHS[-1])
    assert [level.accuracy for level in session.levels()] == sorted(
        {level.accuracy for level in session.levels()}
    )
    with pytest.raises(BudgetError, match="at most"):
        session.answer(asked(session, 0.99))


def test_a_new_worker_loads_the_submodels_that_are_in_use(
    key: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first answer of each would wait for its weights. Unused ones take no memory."""
    with Cluster("127.0.0.1:0", key=key, threads=1, shares="equal") as cluster:
        session = cluster.open(str(store))
        session.curve()
        session.answer(asked(session, session.levels()[0].accuracy))
        planner, new, loaded = cluster.leader.planner, {"b"}, list[str]()
        begin = planner.begin

        def begun(source: Encoder, *given: Any) -> object:
            new.clear()
            loaded.append(source.identity)
            return begin(source, *given)

        monkeypatch.setattr(planner, "newcomers", lambda source: frozenset(new))
        monkeypatch.setattr(planner, "begin", begun)
        session.look_again()
        whole = session.encoder
        assert loaded == [whole.submodel(N_LAYERS, WIDTHS[0]).identity, whole.identity]


def test_workers_answer_by_submodels_and_one_may_leave(
    key: Path, store: Path, model: Path, tmp_path: Path
) -> None:
    """Split over two other processes, and over what is left of them."""
    with (
        Cluster("127.0.0.1:0", key=key, threads=1, shares="equal") as cluster,
        workers(cluster.address, key, str(store), tmp_path) as found,
    ):
        cluster.wait(2, PATIENCE_S)
        session = cluster.open(str(store))
        check_every_level(session, model)
        ran = session.answer(asked(session, session.levels()[0].accuracy)).details.partitions[1]
        assert len(ran.participants) > 1
        found["a"].process.kill()
        check_every_level(session, model)


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ({(6, 12): 0.89, (6, 6): 0.889, (5, 9): 0.886, (6, 3): 0.883, (5, 3): 0.87}, [(6, 3), (6, 6)]),
        ({(6, 12): 0.89, (6, 6): 0.88, (6, 3): 0.883}, [(6, 3)]),
        ({(6, 12): 0.89, (6, 6): 0.889, (6, 3): 0.888}, [(6, 3)]),
        ({(6, 12): 0.89, (6, 6): 0.889, (6, 3): 0.891}, []),
        ({(6, 6): 0.889, (6, 3): 0.888}, []),
    ],
)
def test_a_cluster_offers_the_narrowest_and_the_smallest_as_accurate_as_the_whole(
    sizes: dict[tuple[int, int], float], found: list[tuple[int, int]]
) -> None:
    """Worst first; one that is no smaller, or no worse, replaces the other; none without measurements."""
    encoder = SimpleNamespace(spec=bert(384, 12, 1536, 6), submodel=lambda n, m: (n, m))
    assert [*submodels(cast(Any, encoder), cast(Any, SimpleNamespace(sizes=sizes)))] == found


def test_a_deadline_takes_the_most_accurate_level_whose_bound_keeps_it() -> None:
    """Else the soonest at the floor; without a deadline the quickest at the floor, or the most accurate."""
    times = ((0.8, 1.0, 1.5), (0.85, 2.0, 2.5), (0.9, 4.0, 6.0))
    levels = [ServiceLevel(Curve(((0, s),)), a, Curve(((0, b),))) for a, s, b in times]

    def picked(deadline_s: float | None, floor: float | None) -> int:
        return pick_level(levels, Request(8, "text", deadline_s=deadline_s, accuracy_floor=floor))

    assert [picked(None, None), picked(None, 0.0), picked(None, 0.82)] == [2, 0, 1]
    assert [picked(7.0, None), picked(5.0, None), picked(2.0, None), picked(1.0, None)] == [2, 1, 0, 0]
    assert [picked(5.0, 0.88), picked(2.0, 0.82)] == [2, 1]
    levels.insert(2, ServiceLevel(Curve(((0, 3.0),)), 0.899, Curve(((0, 3.5),))))
    assert [picked(7.0, None), picked(7.0, 0.9), picked(None, None)] == [2, 3, 3]
    levels[2] = ServiceLevel(levels[3].curve, 0.899, levels[3].bound)
    assert picked(7.0, None) == 3, "it is as quick"


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.5, 2.9)), min_size=2, max_size=60),
    st.floats(0.01, 1.0),
)
def test_a_delay_counts_as_a_ratio_or_as_seconds_whichever_is_less(
    answers: list[tuple[float, float]], predicted_s: float
) -> None:
    """By the ratio, a device that is slow by itself was to take twice as long as it does."""
    delays = AnswerDelays()
    assert delays.at(predicted_s) == Timing(predicted_s, predicted_s)
    for plan_s, ratio in answers:
        delays.observe(plan_s, plan_s * ratio)
    found, lately = delays.at(predicted_s), answers[-40:]
    assert predicted_s <= found.median_s <= found.p95_s
    assert found.p95_s <= predicted_s * max(1.0, *(ratio for _, ratio in lately)) + 1e-9
    assert found.p95_s <= predicted_s + max(0.0, *(plan_s * (ratio - 1.0) for plan_s, ratio in lately)) + 1e-9
    delays.observe(0.01, 5.0)
    assert delays.at(predicted_s) == found, "a device of another pace is another plan"


def test_what_answers_take_beyond_their_plans_outlives_the_plans() -> None:
    """Each new plan promised its median as its bound, without what the last one's answers took beyond it."""
    delays, random = AnswerDelays(), np.random.default_rng(3)
    for _ in range(40):
        delays.observe(0.1, 0.12 + 0.02 * random.random())
    found = delays.at(0.1)
    assert found.median_s == pytest.approx(0.13, abs=0.005)
    assert found.p95_s == pytest.approx(0.14, abs=0.002)
    assert delays.spread(0.1) == found.p95_s / found.median_s
    assert delays.over(Curve(((8, 0.1), (32, 0.4)))).at(8) == found.median_s


def test_levels_follow_the_whole_models_pace_and_their_own_error(store: Path) -> None:
    """All are slower where the whole is; one that always takes twice its part is told to, in time."""
    with Cluster("127.0.0.1:0", key=new_key(), threads=1) as cluster:
        whole: Encoder = cluster.open(str(store)).encoder
    part = whole.submodel(2, 2)
    levels = ClusterLevels(whole, Curve(((0, 1.0),)), {part: Curve(((0, 0.25),))})

    def seconds(of: float) -> float:
        return levels.at(ServiceLevel(Curve(((0, of),)), 0.9))[0].curve.at(8)

    assert [seconds(1.0), seconds(3.0)] == pytest.approx([0.25, 0.75])
    for _ in range(60):
        levels.observe(0, 8, seconds(1.0), 0.5)
    assert seconds(1.0) == pytest.approx(0.5, rel=0.05)
    kept = ServiceLevel(Curve(((0, 1.0),)), 0.9)
    assert levels.at(kept) is levels.at(kept)
    assert levels.observe(1, 8, 1.0, 1.25) == 1.25
    fresh = ClusterLevels(whole, Curve(((0, 1.0),)), {part: Curve(((0, 0.25),))})
    assert fresh.observe(0, 8, 0.25, 0.5) == pytest.approx(1.25)
    bounded = ServiceLevel(Curve(((0, 1.0),)), 0.9, Curve(((0, 1.5),)))
    level = ClusterLevels(whole, Curve(((0, 1.0),)), {part: Curve(((0, 0.25),))}).at(bounded)[0]
    assert level.bound_curve.at(8) == pytest.approx(0.75)


def test_a_submodel_that_looked_as_slow_as_the_whole_model_is_tried_again(store: Path) -> None:
    """Equally quick levels answer by the whole model, whose answers told nothing of the submodel."""
    with Cluster("127.0.0.1:0", key=new_key(), threads=1) as cluster:
        whole: Encoder = cluster.open(str(store)).encoder
    levels = ClusterLevels(whole, Curve(((0, 1.0),)), {whole.submodel(2, 2): Curve(((0, 0.5),))})
    told = ServiceLevel(Curve(((0, 1.0),)), 0.9)
    for _ in range(60):
        levels.observe(0, 8, levels.at(told)[0].curve.at(8), 2.0)
    assert levels.at(told)[0].curve.at(8) == 1.0
    for _ in range(120):
        levels.observe(1, 8, 1.0, 1.0)
    assert levels.at(told)[0].curve.at(8) < 0.7
    for _ in range(60):
        levels.observe(0, 8, levels.at(told)[0].curve.at(8), 0.25)
    for _ in range(120):
        levels.observe(1, 8, 1.0, 1.0)
    assert levels.at(told)[0].curve.at(8) == pytest.approx(0.25, rel=0.05), "a quicker one stays quicker"


@pytest.mark.parametrize("free_bytes", [1 << 30, 1 << 10])
def test_a_submodel_is_predicted_for_long_inputs_where_there_is_memory_for_it(free_bytes: int) -> None:
    """Planned for short ones alone, longer ones take as much of the whole model's time."""
    spec = bert(384, 12, 1536, 6)
    picture = Topology({"p": Capability(1.0, 1e9, free_bytes)}, Links({"p": Interface(1e8, 1e8)}))
    whole, part = SyntheticSource(spec), SyntheticSource(spec.submodel(6, 3))

    def solve(n: int, source: Any) -> Prediction:
        alone = Partition("ws", "p", (Share("p", source.spec.n_heads, n),), n)
        return predict(source.spec, alone, picture)

    plans = {8: solve(8, whole)}
    prior = Curve(((8, plans[8].seconds), (512, 90.0 * plans[8].seconds)))
    found = times_of_parts(cast(Any, whole), plans, [cast(Any, part)], solve, prior)
    if free_bytes < 1 << 20:
        assert not found
        return
    levels = levels_by(cast(Any, whole), None, [cast(Any, part)], plans, solve, prior)
    of_part, of_whole = levels.planned
    assert of_whole is plans
    assert of_part[8].program == solve(8, part).program, "each level keeps its plans, for its bytes"
    (curve,) = found.values()
    assert curve.at(8) == pytest.approx(solve(8, part).seconds)
    assert curve.at(512) / prior.at(512) == pytest.approx(curve.at(8) / prior.at(8))


@pytest.mark.parametrize("identity", ["a/x", "a/3", "a/3x", "a/-1x2", "a/3x2x", "a/1.5x2", "a/99999999999x2"])
def test_a_peer_that_names_no_submodel_is_refused(identity: str) -> None:
    """Whatever a member of another version, or a liar, makes of it."""
    with pytest.raises(ModelError, match="names no model"):
        parse_identity(identity)


def test_sizes_that_a_model_has_not_are_refused(store: Path, key: Path) -> None:
    """A worker that is asked for them says so."""
    with Cluster("127.0.0.1:0", key=key, threads=1) as cluster:
        whole = cluster.open(str(store)).encoder
    for n, m in ((0, 2), (N_LAYERS + 1, 2), (1, 0), (1, WIDTHS[-1] + 1)):
        with pytest.raises(ModelError, match="are not a submodel"):
            whole.submodel(n, m)
    part = whole.submodel(3, 2)
    assert parse_identity(part.identity) == (whole.identity, (3, 2))
    assert part.whole is whole
    assert parse_identity(whole.identity) == (whole.identity, None)
