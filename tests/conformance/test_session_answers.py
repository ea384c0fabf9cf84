"""What holds for every kind of session, whatever model it runs and wherever: answers, and what it tells."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.errors import BudgetError, InputError
from pliant.ir.endpoint import Endpoint
from pliant.ir.reply import Reply
from pliant.ir.schedule import violations
from pliant.run.array_sessions.array_session import ArraySession
from tests.conformance.session_kind import LENGTHS
from tests.conformance.session_under_test import SessionUnderTest

pytest.importorskip("torch", reason="recurrent models are compared with torch's answers")
pytest.importorskip("onnxruntime", reason="ONNX models are compared with onnxruntime's answers")
pytest.importorskip("transformers", reason="real ONNX files are exported from transformers")

TOLERANCE = 1e-4  # of the largest output: float32 sums in another order, a few layers deep


def close_to(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """Assert the same outputs: texts equal, numbers up to rounding."""
    assert list(got) == list(wanted)
    for name, want in wanted.items():
        if want.dtype == object:
            assert got[name].tolist() == want.tolist()
        else:
            assert (got[name].shape, str(got[name].dtype)) == (want.shape, "float32")
            assert np.abs(got[name] - want).max() <= TOLERANCE * np.abs(want).max()


# Answers


def test_answers_are_those_of_an_independent_reference(shared: SessionUnderTest) -> None:
    """numpy in float64, torch, onnxruntime, or the model in one piece: none runs what the session runs."""
    for i in range(len(LENGTHS)):
        feeds = shared.kind.feeds(i)
        close_to(dict(shared.session.run(feeds)), shared.kind.expected(shared.folder, feeds))


def test_inputs_of_different_lengths_together_are_answered_as_one_at_a_time(shared: SessionUnderTest) -> None:
    """Padding, or the company of longer inputs, must not change an answer."""
    shared.require("together")
    kind, session = shared.kind, shared.session
    if isinstance(session, ArraySession):
        feeds = [kind.feeds(i) for i in range(len(LENGTHS))]
        for _ in range(2):  # what is compared at first runs in parallel afterwards
            for one, given in zip(session.run_many(feeds), feeds, strict=True):
                close_to(one, dict(session.run(given)))
        return
    texts = [*kind.texts, kind.texts[0]]
    replies = session(texts)
    assert isinstance(replies, list)
    for reply, text in zip(replies, texts, strict=True):
        alone = shared.reply(text)
        close_to(dict(reply.outputs), dict(alone.outputs))
        assert (reply.label, reply.length) == (alone.label, alone.length)


def test_a_text_is_answered_as_its_tokens(shared: SessionUnderTest) -> None:
    """A client that uses its own tokenizer sends token ids; its answers are those of the text."""
    if not shared.kind.texts:
        pytest.skip("it reads no text")
    for text in shared.kind.texts:
        reply = shared.reply(text)
        request = shared.session.request({"text": np.array([text.encode()], object)})
        close_to(dict(reply.outputs), dict(shared.session.answer(request).outputs))
        close_to(dict(reply.outputs), dict(shared.session.run({"text": text})))
        assert reply.label is None or reply.outputs["label"].tolist() == [reply.label.encode()]


def test_a_traced_answer_is_the_answer_and_tells_when_its_steps_ran(shared: SessionUnderTest) -> None:
    """One glance must tell where an answer's time went, whatever ran it.

    The clocks of two devices are known to half a round trip, which a busy machine makes long.
    """
    feeds = shared.kind.feeds(2)
    reply = shared.session.traced(shared.session.request(feeds))
    close_to(dict(reply.outputs), dict(shared.session.run(feeds)))
    spans = reply.details.spans
    clocks_s = 0.02 if len({span.lane.partition("/")[0] for span in spans if "/" in span.lane}) > 1 else 1e-9
    assert list(violations(reply.details.program, spans, clocks_s)) == []
    assert max(span.end_s for span in reply.details.spans) <= reply.seconds + clocks_s


def test_every_run_gives_the_same_bits(shared: SessionUnderTest) -> None:
    """Whichever thread takes which part: an answer that changes cannot be debugged."""
    expected = shared.answers()
    for _ in range(5):
        assert shared.answers() == expected


# Feeds


def test_it_runs_as_onnxruntimes_users_write_it(shared: SessionUnderTest) -> None:
    """By name, or as a list: all outputs for None or an empty list, else those named, in that order."""
    session, feeds = shared.session, shared.kind.feeds(1)
    wanted = dict(session.run(feeds))
    assert list(wanted) == [port.name for port in session.get_outputs()]
    assert set(feeds) <= {port.name for port in session.get_inputs()}
    last = list(wanted)[-1]
    for names in (None, [], list(wanted), [last]):
        found = session.run(names, feeds)
        close_to(dict(zip(names or wanted, found, strict=True)), {y: wanted[y] for y in names or wanted})
    with pytest.raises(InputError, match=r"no outputs \['nothing'\]; the outputs are"):
        session.run(["nothing"], feeds)
    with pytest.raises(InputError, match="run takes feeds by name"):
        session.run(None)  # type: ignore[call-overload]


def test_outputs_go_into_the_arrays_given(shared: SessionUnderTest) -> None:
    """A caller that answers requests all day wants no fresh memory for each."""
    feeds = shared.kind.feeds(2)
    wanted = dict(shared.session.run(feeds))
    name = next(iter(wanted))
    into = np.empty_like(wanted[name])
    assert shared.session.run(feeds, {name: into})[name] is into
    assert into.tobytes() == wanted[name].tobytes()


def test_a_wrong_feed_is_named(shared: SessionUnderTest) -> None:
    """A kernel that trusts a wrong shape would read other memory; the caller must know which feed it is."""
    feeds = dict(shared.kind.feeds(1))
    name = list(feeds)[-1]
    array = np.asarray(feeds[name])
    others = {x: y for x, y in feeds.items() if x != name}
    wrong: list[tuple[dict[str, Any], str]] = [
        (others, name),
        (feeds | {"nothing": array}, "nothing"),
        (feeds | {name: array.astype(np.complex64)}, name),
        (feeds | {name: array[None]}, name),
        (feeds | {name: {"a": 1}}, name),
    ]
    if shared.kind.too_long is not None:
        wrong.append((dict(shared.kind.too_long[0]), shared.kind.too_long[1]))
    for given, said in wrong:
        with pytest.raises(InputError, match=said):
            shared.session.run(given)
    assert shared.answers()


# What a session tells of itself


def test_its_plan_prints_as_a_page_and_shows_in_a_notebook(shared: SessionUnderTest) -> None:
    """What runs and why, for a person: not the repr of nested tuples."""
    shared.session.run(shared.kind.feeds(1))
    plan = shared.session.plan
    page = str(plan)
    assert len(page.splitlines()) > 1
    assert f"{type(plan).__name__}(" not in page
    assert "<" in plan._repr_html_()


def test_a_length_is_explained_as_a_page_too(shared: SessionUnderTest) -> None:
    """What inputs of another length would run; it is ready then, and changes no answer."""
    expected = shared.answers()
    assert len(str(shared.session.explain(3)).splitlines()) > 1
    assert shared.answers() == expected


def test_a_profile_prints_its_steps_and_writes_a_trace(shared: SessionUnderTest, tmp_path: Path) -> None:
    """Where the time goes is the first question about a slow answer; none is changed by asking."""
    expected = shared.answers()
    found = shared.session.profile(shared.kind.feeds(1), runs=3)
    assert 0 < found.min_s <= found.median_s
    assert found.summary in str(found)
    assert len(str(found).splitlines()) > 1
    found.write_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    with pytest.raises(InputError, match="at least 1"):
        shared.session.profile(shared.kind.feeds(1), runs=0)
    assert shared.answers() == expected


def test_a_session_shows_what_it_is(own: SessionUnderTest) -> None:
    """At a prompt or in a log: the model, and whether it is open."""
    assert type(own.session).__name__ in repr(own.session)
    own.session.close()
    assert "closed" in repr(own.session)


def test_a_retarget_changes_the_target_or_is_refused_with_the_next_move(own: SessionUnderTest) -> None:
    """A target that nothing meets changes nothing; a session of one way says so."""
    before = own.answers()
    with pytest.raises((BudgetError, InputError)) as refused:
        own.session.retarget(latency=1e-9)
    assert own.answers() == before
    if refused.type is InputError:
        assert "nothing to retarget: " in str(refused.value)
    else:
        own.session.retarget(latency=30.0)
        assert own.reply(own.sample_input).target_s == 30.0


def test_its_memory_is_predicted_beside_measured(shared: SessionUnderTest) -> None:
    """What `memory=` bounds: what it says before is what lies in memory, up to pages that nothing touched."""
    shared.require("memory")
    shared.session.run(shared.kind.feeds(1))
    if shared.kind.texts:
        shared.session([*shared.kind.texts])  # texts that run together take more room than each alone
    use = shared.session.memory
    assert 0 <= use.measured_bytes <= use.predicted_bytes
    first = [part for part in use.parts if part.name != "parallel runs"]  # nothing ran in parallel yet
    assert any(part.measured_bytes for part in first) == any(part.predicted_bytes for part in first)
    assert "activations" in {part.name for part in use.parts}
    assert "predicted" in str(use)
    assert use.rss_bytes > use.measured_bytes


# As an endpoint


def test_it_is_an_endpoint(shared: SessionUnderTest) -> None:
    """A router asks for a length, an estimate and an answer; nothing else of the session is known to it."""
    session = shared.session
    assert isinstance(session, Endpoint)
    for i in range(len(LENGTHS)):
        feeds = shared.kind.feeds(i)
        request = session.request({x: np.asarray(y) for x, y in feeds.items()})
        assert 1 <= request.length <= session.max_length
        reply = session.answer(request)
        assert isinstance(reply, Reply)
        assert (reply.endpoint, reply.length) == (session.name, request.length)
        assert reply.seconds > 0
        assert session.estimate(request).seconds > 0
        close_to(dict(reply.outputs), dict(session.run(feeds)))
    assert session.curve().at(1) >= 0
    assert session.identity


def test_its_samples_are_requests_of_about_that_length(shared: SessionUnderTest) -> None:
    """A node learns from them what answers take, before anybody asks."""
    session = shared.session
    assert any(set(session.sample(4)) == way for way in session.ways)
    lengths = [session.request(session.sample(n)).length for n in (1, 4, 8)]
    assert lengths in ([1, 4, 8], [1, 1, 1], [lengths[0]] * 3)
    assert session.answer(session.request(session.sample(4))).outputs


def test_an_accuracy_that_was_never_measured_is_not_promised(shared: SessionUnderTest) -> None:
    """A floor is refused before anything runs."""
    assert shared.session.best is None
    with pytest.raises(BudgetError):
        shared.session.curve(0.99)
