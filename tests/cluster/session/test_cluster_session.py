"""A model on a cluster as a session: texts and arrays, plans, targets, closing; and behind a node."""

import json
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from pliant.api.open_cluster import Cluster
from pliant.api.open_encoder import open_encoder
from pliant.cluster.control.messages import Hello
from pliant.cluster.lead.predict import Prediction
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.cluster.net.key import new_key
from pliant.errors import BudgetError, ClusterError, InputError
from pliant.ir.dilation import Dilation
from pliant.ir.endpoint import Endpoint, Request
from pliant.ir.times.bounds import AdaptiveBound
from pliant.ir.times.timing import Timing
from pliant.models.encoder.encoder_source import Encoder
from tests.cluster.processes import small_model, workers
from tests.cluster.test_clustered import write_key
from tests.cluster.test_families import CONFIGS
from tests.models.encoder_runs import run_encoder
from tests.serve.models import texts
from tests.serve.nodes import PATIENCE_S, running

TEXT = "a charming film"
TOLERANCE = 1e-4  # float32 sums in another order


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="module")
def key(folder: Path) -> Path:
    return write_key(folder / "key", new_key())


@pytest.fixture(scope="module")
def lone(key: Path, folder: Path) -> Iterator[Cluster]:
    """A primary without workers, which measures nothing."""
    with Cluster("127.0.0.1:0", key=key, threads=1, shares="equal", cache=folder / "cache") as cluster:
        yield cluster


def other_model(folder: Path, family: str) -> str:
    """What `pliant` calls a small model of another family, with random weights."""
    path = folder / f"{family}.json"
    head = {"architectures": ["ViTForImageClassification"]} if family == "vit" else {}
    path.write_text(json.dumps({"model_type": family} | CONFIGS[family] | head))
    return f"random:{path}"


def test_a_node_answers_over_its_workers_and_without_them(
    key: Path, tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same answer as one device gives, with two workers, and when both are gone; what it promises to
    take is then predicted anew."""
    model = str(tiny_model("bert"))
    with (
        Cluster("127.0.0.1:0", key=key, threads=1) as cluster,
        workers(cluster.address, key, model, tmp_path) as found,
    ):
        cluster.wait(2, PATIENCE_S)
        session = cluster.open(model)
        alone = session.alone(TEXT)
        predicted = [session.curve()]
        expect = session.expect
        monkeypatch.setattr(
            session, "expect", lambda prior, *more: predicted.append(prior) or expect(prior, *more)
        )
        with running(session) as node:

            def ask() -> tuple[list[float], str]:
                tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}
                url = f"{node.url}/v2/models/{session.name}/infer"
                response = httpx.post(url, json={"inputs": [tensor]}, timeout=PATIENCE_S)
                assert response.status_code == 200, response.text
                logits, label = response.json()["outputs"]
                return logits["data"], label["data"][0]

            for _ in range(2):
                logits, label = ask()
                np.testing.assert_allclose([logits], alone.outputs["logits"], atol=TOLERANCE)
                assert label == alone.label
            for worker in found.values():
                worker.kill()
            until_s = time.monotonic() + PATIENCE_S
            while any(worker.is_usable for worker in cluster.status()):
                assert time.monotonic() < until_s, cluster.status()
                time.sleep(0.01)
            n_predicted = len(predicted)
            logits, label = ask()
            np.testing.assert_allclose([logits], alone.outputs["logits"], atol=TOLERANCE)
            assert label == alone.label
    assert len(predicted) > n_predicted


def test_a_primary_at_every_address_is_reached_at_those_that_its_workers_use(
    key: Path, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """`0.0.0.0:29500` stands in the example of `pliant.open`; tensors go to an address that exists."""
    model = str(tiny_model("bert"))
    with Cluster("0.0.0.0:0", key=key, threads=1, shares="equal") as cluster:
        port = cluster.address.rpartition(":")[2]
        with workers(f"127.0.0.1:{port}", key, model, tmp_path):
            cluster.wait(2, PATIENCE_S)
            session = cluster.open(model)
            reply = session(TEXT)
            np.testing.assert_allclose(
                reply.outputs["logits"], session.alone(TEXT).outputs["logits"], atol=TOLERANCE
            )
            assert len(reply.details.partitions[-1].participants) == 3


def test_an_answer_that_shows_another_pace_waits_for_no_other_plan(
    key: Path, tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It scales what others are expected to take, at no time to nothing; lengths near it are planned anew
    once nobody waits."""
    pace = [1.0]
    with Cluster(
        "127.0.0.1:0", key=key, threads=1, cache=tmp_path, dilation=lambda: Dilation(pace[0])
    ) as cluster:
        session = cluster.open(str(tiny_model("bert")))
        request = session.request({"text": texts(TEXT)})
        before_s = session.curve().at(request.length)
        planner, planned = cluster.leader.planner, list[int]()
        solve = planner.solve
        monkeypatch.setattr(
            planner, "solve", lambda spec, n, *more: planned.append(n) or solve(spec, n, *more)
        )
        pace[0] = 40.0
        for _ in range(12):
            session.answer(request)
            assert session.estimate(request).seconds > 0
        assert session.estimate(request).seconds > 4 * before_s
        assert set(planned) <= {request.length}
        session.look_again()
        assert request.length < max(planned) <= 4 * request.length


def test_before_the_first_answer_its_times_are_its_plans(
    lone: Cluster, tiny_model: Callable[..., Path]
) -> None:
    """At each predicted length; between them lines. No accuracy was measured, and none is promised."""
    with lone.open(tiny_model("bert")) as session:
        assert isinstance(session, Endpoint)
        n = session.max_length
        expected_s = session.plan_at(n).predicted_s
        assert expected_s > 0
        assert session.curve().at(n) == pytest.approx(expected_s)
        compiling = session.compiling(Request(n, TEXT))
        assert compiling is not None
        assert session.estimate(Request(n, TEXT)).seconds == session.curve().at(n) + compiling.median_s
        with pytest.raises(BudgetError):
            session.curve(0.5)
        request = session.request({"text": texts(TEXT)})
        assert request.length == len(request.tensors["ids"])
        assert session.answer(Request(request.length, TEXT)).length == request.length


def test_a_model_without_a_tokenizer_takes_words_by_number(lone: Cluster, folder: Path) -> None:
    """A vector, as any session of that model gives; types of words are read as well."""
    session = lone.open(small_model(folder))
    assert [port.name for port in session.inputs] == ["ids"]
    feeds = session.sample(5)
    (answer,) = session.run(feeds).values()
    assert (answer.dtype, answer.shape) == (np.float32, session.outputs[0].dims)
    given_vector = np.empty_like(answer)
    assert session.run(feeds, {"vector": given_vector})["vector"] is given_vector
    np.testing.assert_array_equal(given_vector, answer)
    with pytest.raises(InputError, match=r"'vector' is float32\[4, \d+\], but must be float32\[1,"):
        session.run(feeds, {"vector": np.empty((4, answer.shape[1]), np.float32)})
    others = session.run(feeds | {"types": np.ones((1, 5), np.int64)})["vector"]
    assert np.abs(others - answer).max() > 0
    with pytest.raises(InputError, match="no tokenizer; feed it arrays by name"):
        session(TEXT)
    wrong: list[tuple[dict[str, object], str]] = [
        ({"ids": np.array([[1, 10**6]])}, "1000000"),
        ({"ids": np.array([1, 2])}, r"`ids` is \[2\]; give int64\[1,\?\]"),
        ({"text": TEXT}, "reads ids; the feeds are text"),
        ({}, "reads ids; the feeds are none"),
    ]
    for given, said in wrong:
        with pytest.raises(InputError, match=said):
            session.run(given)


@pytest.mark.parametrize("family", ["vit", "whisper"])
def test_pictures_and_sound_are_fed_as_arrays(family: str, lone: Cluster, folder: Path) -> None:
    """The same class and calls as for texts, with the model's own inputs; a node serves them too."""
    model = other_model(folder, family)
    encoder = open_encoder(model, folder)
    session = lone.open(model)
    rows = session.max_length
    feeds = session.sample(rows, seed=3)
    (port,) = session.inputs
    (array,) = feeds.values()
    assert (list(feeds), array.dtype.name, array.ndim) == ([port.name], port.dtype, len(port.dims or ()))
    want = run_encoder(encoder, {port.name: array[0]})
    reply = session(feeds)
    np.testing.assert_allclose(next(iter(reply.outputs.values()))[0], want, atol=TOLERANCE)
    assert reply.length == rows
    assert reply.label == (("a", "b")[int(want.argmax())] if family == "vit" else None)
    with pytest.raises(InputError, match=f"`{port.name}` is .*; give float32"):
        session.run({port.name: array[0]})
    with running(session) as node:
        tensor = {"name": port.name, "datatype": "FP32", "shape": array.shape}
        tensor |= {"data": array.reshape(-1).tolist()}
        url = f"{node.url}/v2/models/{session.name}/infer"
        response = httpx.post(url, json={"inputs": [tensor]}, timeout=PATIENCE_S)
        assert response.status_code == 200, response.text
        got = response.json()["outputs"][0]
    np.testing.assert_allclose(np.reshape(got["data"], got["shape"])[0], want, atol=TOLERANCE)
    session.close()  # the node has closed it, which is fine


def test_texts_in_a_list_are_answered_in_order(lone: Cluster, tiny_model: Callable[..., Path]) -> None:
    """As by any session of texts: replies in order, pairs as well, and an error names the item."""
    session = lone.open(tiny_model("bert"))
    given = [TEXT, ("a film", "a plot"), "not"]
    replies = session(given)
    singles = [session(TEXT), session("a film", "a plot"), session("not")]
    for one, single in zip(replies, singles, strict=True):
        np.testing.assert_allclose(one.outputs["logits"], single.outputs["logits"], atol=TOLERANCE)
        assert (one.label, one.length) == (single.label, single.length)
    with pytest.raises(InputError, match="text 1 of the list"):
        session([TEXT, " "])


def test_requests_run_together_if_the_model_reads_texts_and_all_its_workers_take_several(
    lone: Cluster, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """A worker of the release before would let texts attend to each other, if it holds the model."""
    with lone.open(tiny_model("bert")) as session:
        request = session.request({"text": texts(TEXT)})
        assert session.together(request) == session.together(request) is not None
        assert session.together(request) != session.together(replace(request, deadline_s=1.0))
        primary = lone.leader.primary
        for models, is_told in ((("another",), True), ((session.encoder.identity,), False)):
            primary.handle_message("old", Hello("0.0.7", "", 1, 10**9, models))
            assert (session.together(request) is not None) is is_told
        primary.handle_lost_peer("old")
        assert session.together(request) is not None
    with lone.open(other_model(tmp_path, "vit")) as images:
        assert images.together(images.request(images.sample(images.max_length))) is None


def test_a_target_judges_replies_and_plans(lone: Cluster, tiny_model: Callable[..., Path]) -> None:
    """No plan is quicker than the one that runs: a target that it cannot keep changes nothing."""
    with lone.open(tiny_model("bert")) as session:
        assert session(TEXT).met is None
        with pytest.raises(BudgetError, match="the quickest needs"):
            session.retarget(1e-9)
        assert session.plan.deadline_s is None
        session.retarget("1min")
        assert (session(TEXT).target_s, session(TEXT).met) == (60.0, True)
        assert session(TEXT, latency=1e-9).met is False
        assert session.plan.met is True
        with pytest.raises(InputError, match="nothing to change"):
            session.retarget(None)  # type: ignore[arg-type]


def test_workers_are_measured_between_requests_until_that_succeeds(
    lone: Cluster, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that failed once has the same name when it returns, and was excluded from every later run."""
    with lone.open(tiny_model("bert")) as session:
        session.curve()
        planner, new, tried = lone.leader.planner, {"b"}, list[bool]()

        def measure(source: Encoder, tokens: int, *, is_beside: bool = False) -> None:
            tried.append(is_beside)
            if len(tried) == 1:
                raise ClusterError("b failed")
            new.clear()

        monkeypatch.setattr(planner, "newcomers", lambda source: frozenset(new))
        monkeypatch.setattr(planner, "measure", measure)
        begun = list[int]()
        begin = planner.begin
        monkeypatch.setattr(planner, "begin", lambda *given: begun.append(len(tried)) or begin(*given))
        with pytest.raises(ClusterError):
            session.look_again()
        session.look_again()
        assert len(tried) > 1
        assert all(tried)
        assert len(begun) == 1, "it loads its weights"
        n_tried = len(tried)
        session.look_again()
        assert len(tried) == n_tried


def test_an_estimate_plans_nothing_after_a_look_failed(
    lone: Cluster, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node estimates on its event loop: it stood still while a worker joined, and was measured."""
    with lone.open(tiny_model("bert")) as session:
        planner, tried = lone.leader.planner, list[int]()

        def solve(*given: object, **options: object) -> Prediction:
            tried.append(1)
            raise BudgetError("there is no memory for it yet")

        with monkeypatch.context() as patched:
            patched.setattr(planner, "solve", solve)
            with pytest.raises(BudgetError):
                session.look_again()
            n_tried = len(tried)
            with pytest.raises(BudgetError, match="no memory for it yet"):
                session.estimate(session.request(session.sample(8)))
            assert len(tried) == n_tried > 0
        session.look_again()
        assert session.estimate(session.request(session.sample(8))).seconds > 0.0


def test_a_cluster_that_was_never_slower_than_measured_is_not_probed(
    lone: Cluster, tiny_model: Callable[..., Path]
) -> None:
    """A probe of one would find what is known, and keep its devices busy."""
    with lone.open(tiny_model("bert")) as session:
        session.curve()
        assert session.reconsider() is False


def test_a_closed_model_takes_no_memory(lone: Cluster, tiny_model: Callable[..., Path]) -> None:
    """The weights of its head stayed, in a copy for each length."""
    session = lone.open(tiny_model("bert"))
    session(session.sample(9))
    assert session.weight_bytes > 0
    session.close()
    assert session.weight_bytes == 0


def test_a_plans_bound_follows_what_its_runs_took(lone: Cluster, tiny_model: Callable[..., Path]) -> None:
    """Before a run it is the prediction; then a target is judged by what 95 of 100 runs stay under."""
    with lone.open(tiny_model("bert")) as session:
        plan, bound = session.plan_at(9), AdaptiveBound()
        assert plan.bound_s == plan.predicted_s
        for _ in range(4):
            details = session(session.sample(9)).details
            bound.observe(Timing(details.predicted_s, details.predicted_s), details.run_s)
        plan = session.plan_at(9)
        assert plan.bound_s == bound.correct(Timing(plan.predicted_s, plan.predicted_s)).p95_s
        assert session.plan_at(9, latency=plan.bound_s * 1.01).met is True
        assert session.plan_at(9, latency=plan.bound_s * 0.99).met is False


def test_its_plan_shows_as_a_page_and_in_a_notebook(
    lone: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The picture needs matplotlib; without it the notebook shows the timeline as text."""
    session = lone.open(small_model(folder))
    session(session.sample(9))
    plan = session.plan
    assert {share.rows for share in plan.partition.shares} == {9}, "of inputs as long as the latest"
    pytest.importorskip("matplotlib", reason="the picture is drawn by it")
    assert "<svg" in plan._repr_html_()
    monkeypatch.setattr("pliant.cluster.session.cluster_page.can_draw", lambda: False)
    page = session.explain(9)._repr_html_()
    assert "<svg" not in page
    assert f"<td>{lone.name}</td>" in page
    assert "<li>chosen, mode ws" in page


def test_a_profile_shows_every_step_as_predicted_and_as_it_ran(
    lone: Cluster, folder: Path, tmp_path: Path
) -> None:
    """What `pliant bench --profile` prints of other sessions; its trace opens in a browser."""
    session = lone.open(small_model(folder))
    profile = session.profile(session.sample(4), runs=2)
    assert 0 < profile.min_s <= profile.median_s
    assert "fastest of 2 runs" in profile.summary
    assert "1 device" in profile.summary
    assert len(str(profile).splitlines()) > len(profile.fastest.program.steps)
    profile.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"predicted", "measured"} <= {event["args"].get("name") for event in events}
    with pytest.raises(InputError, match="0 runs"):
        session.profile(session.sample(4), runs=0)


def test_a_model_has_one_session_until_that_is_closed(
    lone: Cluster, folder: Path, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing it gives its weights up everywhere, and leaves the cluster and its other sessions open."""
    model, other = small_model(folder), lone.open(tiny_model("bert"))
    session = lone.open(model)
    assert lone.open(model) is session
    session(session.sample(4))
    other(TEXT)
    kept: list[Collection[ReadyPlan]] = []
    monkeypatch.setattr(
        "pliant.cluster.lead.plan_distribution.PlanDistribution.forget", lambda _, keep: kept.append(keep)
    )
    session.close()
    session.close()
    (models,) = ({held.source.identity for held in keep} for keep in kept)
    assert session.weight_bytes > 0
    assert session.encoder.identity not in models
    assert other.encoder.identity in models
    assert "closed" in repr(session)
    monkeypatch.undo()
    for ask in (lambda: session(session.sample(4)), lambda: session.plan_at(4)):
        with pytest.raises(InputError, match="this session is closed; ask the cluster"):
            ask()
    assert other(TEXT).label is not None
    again = lone.open(model)
    assert again is not session
    assert again(again.sample(4)).outputs


def test_closing_the_cluster_closes_its_sessions(key: Path, folder: Path) -> None:
    """What ran over it cannot run any more, and says why."""
    with Cluster("127.0.0.1:0", key=key, threads=1, shares="equal", cache=folder / "cache") as cluster:
        session = cluster.open(small_model(folder))
    assert session.is_closed
    with pytest.raises(InputError, match="this cluster is closed; open another one"):
        session(session.sample(4))
