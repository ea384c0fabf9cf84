"""Requests of several lengths that run together are answered as each is alone."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.api.compile_onnx import compile
from pliant.errors import GraphError, InputError
from pliant.run.batches.feed_batcher import COUNTS
from pliant.run.batches.request_batcher import balance_parts
from tests.models.onnx_models import parse
from tests.run.batches.test_buckets import MASKED
from tests.run.batches.test_feed_batcher import ENCODER, MEAN, OVER_ROWS

MOST = 8
_WEIGHT = ", ".join(map(str, np.random.default_rng(0).standard_normal(4096).round(3).tolist()))
ROWS_OF_64 = parse(
    f"g (float[B,S,64] x) => (float[B,S,64] y) {{ w = Constant <value = float[64,64] {{{_WEIGHT}}}> () "
    "h = MatMul(x, w) r = Relu(h) y = MatMul(r, w) }"
)
"""Large enough for its weights to be coded."""


def _feeds(length: int, seed: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((1, length, 8)).astype(np.float32)
    return {"x": x, "mask": np.ones((1, length), np.float32)}


def _opened(model: Any, threads: int = 2, **options: Any) -> Any:
    session = compile(model, threads=threads, **options)
    session.answer(session.request(session.sample(3)))  # what a node learns first
    return session


@pytest.mark.parametrize("model", [ENCODER, MASKED], ids=["packed", "padded"])
def test_texts_together_are_answered_as_each_alone(model: Any) -> None:
    """Of every number of texts and any lengths, on one thread or several; sums in another order."""
    session, alone = _opened(model), compile(model, threads=1)
    assert session.prepare_together(60)
    assert (session.most_together, session.most_together_beside) == (4 * 2, COUNTS[0])
    rng = np.random.default_rng(0)
    for n in range(2, MOST + 1):
        feeds = [_feeds(int(length), n) for length in rng.integers(1, 65, n)]
        requests = [session.request(one) for one in feeds]
        assert len({session.together(request) for request in requests} - {None}) == 1
        for one, reply in zip(feeds, session.answers(requests), strict=True):
            for y, wanted in alone.run(one).items():
                assert reply.outputs[y].shape == wanted.shape
                np.testing.assert_allclose(reply.outputs[y], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", [ENCODER, MASKED], ids=["packed", "padded"])
def test_batches_beside_each_other_are_answered_as_each_alone(model: Any) -> None:
    """From several threads, more than there are workers, while others run alone on all threads."""
    session, alone = _opened(model), compile(model, threads=1)
    assert session.prepare_together(60)
    assert session.most_beside == 2
    assert session.pace_beside > 0.0
    rng = np.random.default_rng(1)

    def ask(n: int) -> list[tuple[dict[str, np.ndarray], Any]]:
        feeds = [_feeds(int(length), n) for length in rng.integers(1, 65, n)]
        requests = [session.request(one) for one in feeds]
        replies = session.answers_beside(requests) if n < MOST else [*map(session.answer, requests)]
        return list(zip(feeds, replies, strict=True))

    with ThreadPoolExecutor(4) as threads:
        found = [one for each in threads.map(ask, [*range(1, MOST + 1)] * 4) for one in each]
    for feeds, reply in found:
        for y, wanted in alone.run(feeds).items():
            np.testing.assert_allclose(reply.outputs[y], wanted, rtol=1e-4, atol=1e-4)
    (part,) = [part for part in session.memory.parts if part.name == "parallel runs"]
    assert part.measured_bytes > 0


def test_workers_share_more_threads_than_four() -> None:
    """Six threads are three workers of two, or as many as the user wants; answers are those of each alone."""
    session, alone = _opened(ENCODER, threads=6), compile(ENCODER, threads=1)
    assert session.prepare_together(60)
    for n_workers, wanted in ((None, 3), (1, 1), (2, 2), (6, 6), (7, 6)):
        session.divide_threads(n_workers)
        assert session.most_beside == wanted
        feeds = [_feeds(n, n) for n in (5, 60, 33)]
        requests = [session.request(one) for one in feeds]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(session.answers_beside, [requests] * 8))
        for replies in found:
            for one, reply in zip(feeds, replies, strict=True):
                y = alone.run(one)["y"]
                np.testing.assert_allclose(reply.outputs["y"], y, rtol=1e-4, atol=1e-4)
    session.close()
    assert session.memory.parts[-1].measured_bytes == 0


def test_a_session_that_is_closed_meanwhile_answers_what_has_begun() -> None:
    """A model is unloaded while workers run batches of it: each is right, or says that it is closed."""
    session, alone = _opened(ENCODER), compile(ENCODER, threads=1)
    assert session.prepare_together(60)
    feeds = [_feeds(60, i) for i in range(4)]
    requests = [session.request(one) for one in feeds]
    wanted = [alone.run(one)["y"] for one in feeds]
    begun = threading.Barrier(3)

    def ask() -> int:
        begun.wait()
        for n in itertools.count():
            try:
                replies = session.answers_beside(requests)
            except InputError:  # the session is closed
                return n
            for reply, y in zip(replies, wanted, strict=True):
                np.testing.assert_allclose(reply.outputs["y"], y, rtol=1e-4, atol=1e-4)
        raise AssertionError

    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(ask) for _ in range(2)]
        begun.wait()
        session.answers_beside(requests)
        session.close()
        assert all(one.result(60) >= 0 for one in asked)
    assert session.memory.parts[-1].measured_bytes == 0


def test_whole_numbers_together_are_those_of_each_alone() -> None:
    """Products of int8 are sums of whole numbers, scaled row by row: only a last bit may differ."""
    session = _opened(ROWS_OF_64, compute="int8", weights=6)
    assert session.prepare_together(64)
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((1, n, 64)).astype(np.float32)} for n in (3, 64, 20, 1, 33)]
    alone = [session.run(one)["y"] for one in feeds]
    for wanted, reply in zip(alone, session.answers([session.request(one) for one in feeds]), strict=True):
        np.testing.assert_allclose(reply.outputs["y"], wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("model", [OVER_ROWS, MEAN], ids=["mixes rows", "takes padding for data"])
def test_a_model_that_company_would_change_answers_alone(model: Any) -> None:
    """That is found out before anybody asks."""
    session = _opened(model)
    assert not session.prepare_together(8)
    assert session.together(session.request(session.sample(8))) is None


def test_lengths_that_were_not_prepared_run_alone() -> None:
    """Nobody who waits should wait for a compiler besides."""
    session = _opened(ENCODER)
    assert session.together(session.request(_feeds(5, 0))) is None
    assert session.prepare_together(5)
    assert session.together(session.request(_feeds(5, 0))) is not None
    assert session.together(session.request(_feeds(65, 0))) is None


def test_a_text_without_tokens_runs_alone() -> None:
    """It has no row of its own in a batch: it got the answer of another request."""
    session = _opened(ENCODER)
    assert session.prepare_together(5)
    assert session.together(session.request(_feeds(0, 0))) is None


def test_more_threads_than_requests_answer_them() -> None:
    """Nine texts make no sixteen parts."""
    session, alone = compile(MASKED, threads=16), compile(MASKED, threads=1)
    session.answer(session.request(session.sample(3)))
    assert session.prepare_together(60)
    feeds = [_feeds(n, n) for n in range(40, 49)]
    replies = session.answers([session.request(one) for one in feeds])
    for one, reply in zip(feeds, replies, strict=True):
        for y, wanted in alone.run(one).items():
            np.testing.assert_allclose(reply.outputs[y], wanted, rtol=1e-4, atol=1e-4)


def test_requests_of_several_rows_run_alone() -> None:
    """A batch that a client made is one already."""
    session = _opened(ENCODER)
    assert session.prepare_together(5)
    rows = {name: np.concatenate([array, array]) for name, array in _feeds(5, 0).items()}
    assert session.together(session.request(rows)) is None


@pytest.mark.filterwarnings(
    "ignore:.*is compiled again:UserWarning"
)  # the least limit has room for one image
@pytest.mark.parametrize("model", [ENCODER, MASKED], ids=["packed", "padded"])
def test_batches_keep_a_memory_limit(model: Any) -> None:
    """As many texts run together as there is room for, one batch after another; each is answered as alone."""
    alone, found = compile(model, threads=1), []
    with _opened(model, memory="64MB") as session:
        session.run(_feeds(64, 0))
        least = session.memory.predicted_bytes
    rng = np.random.default_rng(0)
    for limit in (least, *(least + n * 30_000 for n in range(1, 12))):
        with _opened(model, memory=limit) as session:
            session.run(_feeds(64, 0))
            if not session.prepare_together(64):
                assert session.together(session.request(_feeds(60, 0))) is None
            assert session.most_beside == 1
            feeds = [_feeds(int(length), i) for i, length in enumerate(rng.integers(1, 65, 11))]
            replies = session.answers([session.request(one) for one in feeds])
            for one, reply in zip(feeds, replies, strict=True):
                for y, wanted in alone.run(one).items():
                    np.testing.assert_allclose(reply.outputs[y], wanted, rtol=1e-4, atol=1e-4)
            assert session.memory.predicted_bytes <= limit
            assert session.memory.measured_bytes <= limit
            found.append((session.most_together, session.most_items_together))
    assert found == sorted(found)
    assert {n for n, _ in found} == {1, 2, 4, 8}
    assert found[-1] == (MOST, MOST * 64)


def test_rows_of_images_run_together() -> None:
    """Where no other dimension is open, rows are put together as they are."""
    session = _opened(parse("g (float[N,4] x) => (float[N,4] y) { y = Neg(x) }"))
    assert session.prepare_together(1)
    feeds = [{"x": np.full((1, 4), i, np.float32)} for i in range(11)]
    replies = session.answers([session.request(one) for one in feeds])
    assert [reply.outputs["y"].tolist() for reply in replies] == [[[-float(i)] * 4] for i in range(11)]


def test_a_closed_session_says_so() -> None:
    session = _opened(ENCODER)
    assert session.prepare_together(5)
    requests = [session.request(_feeds(5, i)) for i in range(2)]
    session.close()
    with pytest.raises(InputError, match="closed"):
        session.answers(requests)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=MOST), st.integers(2, 4))
def test_parts_have_all_texts_once_and_about_equal_work(lengths: list[int], n_parts: int) -> None:
    """No part is longer than a batch may be; none has more than another by more than one text."""
    parts = balance_parts(lengths, n_parts)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    assert max(map(len, parts)) <= COUNTS[0]
    if len(lengths) <= COUNTS[0]:
        work = [sum(lengths[i] for i in part) for part in parts]
        assert max(work) - min(work) <= max(lengths)


@pytest.mark.parametrize("is_beside", [False, True])
def test_requests_that_cannot_run_together_are_answered_one_by_one(is_beside: bool) -> None:
    """Of several rows, of no token, too long for a batch, or of several keys: a list of them failed."""
    session, alone = _opened(ENCODER), compile(ENCODER, threads=1)
    assert session.prepare_together(60)
    rows = {name: np.concatenate([array, array]) for name, array in _feeds(5, 0).items()}
    some = [rows, _feeds(0, 1), _feeds(8200, 2), _feeds(3, 3), _feeds(70, 4)]
    for feeds in (some[:2], some[1:3], some[3:], some, [some[0]]):
        requests = [session.request(one) for one in feeds]
        replies = session.answers_beside(requests) if is_beside else session.answers(requests)
        for one, reply in zip(feeds, replies, strict=True):
            for y, wanted in alone.run(one).items():
                np.testing.assert_allclose(reply.outputs[y], wanted, rtol=1e-4, atol=1e-4)


def test_more_requests_than_a_batch_of_one_worker_has_are_several_batches() -> None:
    """An executable for eleven rows would be compiled otherwise."""
    session = _opened(ENCODER)
    assert session.prepare_together(60)
    feeds = [_feeds(n, n) for n in range(20, 31)]
    replies = session.answers_beside([session.request(one) for one in feeds])
    for one, reply in zip(feeds, replies, strict=True):
        np.testing.assert_allclose(reply.outputs["y"], session.run(one)["y"], rtol=1e-4, atol=1e-4)
    assert {image.inputs["x"].shape[0] for image in session.plan.images} <= {1, *COUNTS}


PICTURES = parse(
    "g (float[N,3,H,W] x, float[4,3,3,3] k) => (float[N,4,1,1] y) { "
    "c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, k) r = Relu(c) y = GlobalAveragePool(r) }"
)


VALID = parse(
    "g (float[N,3,H,W] x, float[4,3,3,3] k) => (float[N,4,1,1] y) { "
    "c = Conv <kernel_shape = [3, 3]> (x, k) r = Relu(c) y = GlobalAveragePool(r) }"
)


def test_a_model_without_batches_needs_no_valid_sample_to_run_its_requests_beside_each_other() -> None:
    """A picture of 1 x N is smaller than a kernel of 3 x 3: nothing was ever prepared, and all ran alone."""
    session, alone = compile(VALID, threads=2), compile(VALID, threads=1)
    rng, sizes = np.random.default_rng(0), [(16, 12), (9, 20), (3, 3)]
    kernel = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    feeds = [
        {"x": rng.standard_normal((1, 3, *sizes[i % 3])).astype(np.float32), "k": kernel} for i in range(12)
    ]
    requests = [session.request(one) for one in feeds]
    session.answer(requests[0])
    with pytest.raises(GraphError):
        session.prepare_together(8)
    assert len({session.together(request) for request in requests} - {None}) == 1
    assert None not in {session.together(request) for request in requests}
    assert (session.most_beside, session.pace_beside) == (2, 2)
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda request: session.answers_beside([request])[0], requests))
    for one, reply in zip(feeds, found, strict=True):
        np.testing.assert_allclose(reply.outputs["y"], alone.run(one)["y"], rtol=1e-5, atol=1e-6)
    session.divide_threads(1)
    assert {session.together(request) for request in requests} == {None}


@pytest.mark.parametrize("dims", [{}, {"N": 1, "H": 16, "W": 12}], ids=["open", "fixed"])
def test_requests_of_a_model_without_batches_run_beside_each_other(dims: dict[str, int]) -> None:
    """Pictures of several sizes, or of one, from more threads than there are workers."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    theirs = runtime.InferenceSession(PICTURES.SerializeToString())
    session = _opened(PICTURES, dims=dims, images=2)
    assert session.prepare_together(8)
    assert (session.most_beside, session.most_together, session.most_together_beside) == (2, 1, 1)
    rng = np.random.default_rng(0)
    sizes = [(16, 12)] if dims else [(16, 12), (9, 20), (8, 8), (31, 5)]
    kernel = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    feeds = [
        {"x": rng.standard_normal((1, 3, *sizes[i % len(sizes)])).astype(np.float32), "k": kernel}
        for i in range(24)
    ]
    requests = [session.request(one) for one in feeds]
    assert None not in {session.together(request) for request in requests}
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda i: session.answers_beside(requests[i : i + 2]), range(0, 24, 2)))
    replies = [reply for some in found for reply in some]
    for one, reply in zip(feeds, replies, strict=True):
        (wanted,) = theirs.run(None, one)
        np.testing.assert_allclose(reply.outputs["y"], wanted, rtol=1e-4, atol=1e-5)
        assert np.array_equal(reply.outputs["y"], session.run(one)["y"])
    session.close()
    assert session.memory.parts[-1].measured_bytes == 0
