"""Sessions on compiled directories: inputs, the plan, and requests that run beside each other."""

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pliant
from pliant.api.compile_onnx import compile_image
from pliant.compiler.aot.compiled_directory import compiled_identity, save
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import Image, make_image
from pliant.errors import InputError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import host_isa
from pliant.run.array_sessions.graph_session import GraphSession
from pliant.run.batches import parallel_runs
from tests.models.onnx_models import parse

ATTENTION = parse(
    "g (float[2,16,64] x, float[2,16] mask) => (float[2,16,64] y, float[2,64] mean) { "
    "t = Transpose <perm = [0, 2, 1]> (x) s = MatMul(x, t) p = Softmax(s) z = MatMul(p, x) "
    "axes = Constant <value = int64[1] {2}> () wide = Unsqueeze(mask, axes) w = Mul(z, wide) "
    "r = Relu(w) y = Add(r, x) mean = ReduceMean <axes = [1], keepdims = 0> (y) }"
)
WIDE = parse(
    "g (float[64,16] x, float[16,2048] w, float[2048,16] v) => (float[64,16] y) { "
    "h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"
)
"""Its arena is large: 64 rows of 2048 numbers."""
ROWS = TensorType("float32", (64, 64))


@pytest.fixture
def session(tmp_path: Path) -> GraphSession:
    """Three steps."""
    nodes = (
        Node("MatMul", ("x", "x"), ("a",)),
        Node("Transpose", ("a",), ("b",)),
        Node("MatMul", ("b", "a"), ("y",)),
    )
    graph = Graph(nodes, ("x",), ("y",), dict.fromkeys("xaby", ROWS))
    save(make_image(graph, Target(host_isa(), 2)), tmp_path / "graph")
    return pliant.load(tmp_path / "graph", threads=2)


def test_lists_and_calls_work_as_for_compiled_models(session: GraphSession) -> None:
    """`pliant.load` gives the same kind of session as `pliant.compile`."""
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    assert np.array_equal(session(x.tolist()).output, session.run({"x": x})["y"])
    with pytest.raises(InputError, match=r"'x' is float32\[1,1\], but must be float32\[64,64\]"):
        session.run({"x": [[1.0]]})


def test_its_plan_is_its_one_image(session: GraphSession, tmp_path: Path) -> None:
    """Known before the first run: nothing is compiled later."""
    assert session.plan == session.explain(7)
    (image,) = session.plan.images
    assert image.inputs == {"x": ROWS}
    assert {o.op: o.n_calls for o in image.operators}["MatMul"] == 2
    assert (session.name, session.identity) == ("graph", compiled_identity(tmp_path / "graph"))
    session.close()
    assert session.plan.images == ()


def _saved(folder: Path, model: onnx.ModelProto = ATTENTION, n_threads: int = 2) -> Path:
    """A compiled directory of the model."""
    save(_image(folder, model, n_threads), folder / "compiled")
    return folder / "compiled"


def _image(folder: Path, model: onnx.ModelProto = ATTENTION, n_threads: int = 2) -> Image:
    onnx.save(model, folder / "model.onnx")
    return compile_image(folder / "model.onnx", Target(host_isa(), n_threads))[1]


def _worker_bytes(image: Image, n_workers: int, n_threads: int) -> int:
    """What workers of one thread or more hold: an arena each, and scratch in whole cache lines a thread."""
    scratch = -(-image.scratch_bytes // 64) * 64
    return n_workers * image.arena_bytes + n_threads * scratch


def _feeds(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 16, 64)).astype(np.float32)
    return {"x": x, "mask": rng.integers(0, 2, (2, 16)).astype(np.float32)}


def _parallel(session: GraphSession) -> tuple[int, int]:
    """Predicted and measured bytes of parallel runs."""
    parts = [part for part in session.memory.parts if part.name == "parallel runs"]
    return sum(p.predicted_bytes or 0 for p in parts), sum(p.measured_bytes for p in parts)


def _is_equal(found: Any, wanted: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(found[y], array) for y, array in wanted.items())


def test_many_threads_get_the_answers_of_single_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, by every way to ask, while others ask and some are refused; and those of onnxruntime."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    monkeypatch.setattr(parallel_runs, "LEAST_FLOPS", 0)  # a small model shows what a large one does
    directory, every = _saved(tmp_path), [_feeds(i) for i in range(24)]
    theirs = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    with pliant.load(directory, threads=2) as session:
        requests = [session.request(feeds) for feeds in every]
        wanted = [session.run(feeds) for feeds in every]
        for feeds, answer in zip(every, wanted, strict=True):
            for y, theirs_y in zip(("y", "mean"), theirs.run(["y", "mean"], feeds), strict=True):
                np.testing.assert_allclose(answer[y], theirs_y, rtol=1e-4, atol=1e-4)
        assert session.prepare_together(64)
        assert (session.most_beside, session.most_together, session.most_together_beside) == (2, 1, 1)
        assert len({session.together(request) for request in requests} - {None}) == 1

        def ask(n: int) -> list[bool]:
            i = n % len(every)
            some = [i, (i + 1) % len(every), (i + 2) % len(every)]
            answers: Sequence[Any]
            match n % 4:
                case 0:
                    answers = [reply.outputs for reply in session.answers_beside([requests[k] for k in some])]
                case 1:
                    answers = session.run_many([every[k] for k in some])
                case 2:
                    answers = [reply.outputs for reply in session.answers([requests[k] for k in some])]
                case _:
                    with pytest.raises(InputError, match=r"must be float32\[2,16,64\]"):
                        session.run({**every[i], "x": np.ones((2, 17, 64), np.float32)})
                    answers = [session.answer(requests[k]).outputs for k in some]
            return [_is_equal(answer, wanted[k]) for k, answer in zip(some, answers, strict=True)]

        with ThreadPoolExecutor(8) as threads:
            assert all(all(right) for right in threads.map(ask, range(160)))
        predicted, measured = _parallel(session)
    assert predicted == _worker_bytes(_image(tmp_path), 2, 2)
    assert 0 < measured <= predicted


def test_its_need_is_that_of_its_memory(tmp_path: Path) -> None:
    """It counted mapped weights, and neither arenas nor the limit: explanations gave another memory.
    What is measured of parallel runs is the part that lies in RAM, which may be less than their arrays.
    """
    with pliant.load(_saved(tmp_path), threads=2, memory="1MB") as session:
        for feeds in (_feeds(0), _feeds(1)):
            session.answers_beside([session.request(feeds)])
        need, (predicted, held) = session.need(1), _parallel(session)
        assert need.most_bytes == session.memory.budget_bytes == 1_000_000
        image = _image(tmp_path)
        used = _worker_bytes(image, 1, 1)  # one after another, both ran on the first worker
        assert need.held_bytes == session.arena_bytes + used
        assert predicted == _worker_bytes(image, 2, 2)
        assert 0 < held <= used <= predicted


def test_workers_are_as_many_as_the_memory_limit_has_arenas_for(tmp_path: Path) -> None:
    """Each worker has an arena beside that of runs on all threads, and each thread its scratch."""
    directory, rng = _saved(tmp_path, WIDE, n_threads=4), np.random.default_rng(0)
    shapes = {"x": (64, 16), "w": (16, 2048), "v": (2048, 16)}
    every = [
        {x: rng.standard_normal(shape).astype(np.float32) for x, shape in shapes.items()} for _ in range(6)
    ]
    with pliant.load(directory, threads=4) as session:
        arena, (predicted, _) = session.arena_bytes, _parallel(session)
        scratch = predicted - 4 * arena
        assert arena >= 64 * 2048 * 4
        assert scratch >= 0
        requests = [session.request(feeds) for feeds in every]
        wanted = [session.run(feeds) for feeds in every]
    for n_arenas, n_workers in ((1, 1), (2, 1), (3, 2), (4, 3), (5, 4), (9, 4)):
        limit = n_arenas * arena + scratch
        with pliant.load(directory, threads=4, memory=limit) as session:
            assert session.most_beside == n_workers
            for asked in (None, 2, 4):
                session.divide_threads(asked)
                assert session.most_beside == min(n_workers, asked or 4)
                assert session.prepare_together(1) == (session.most_beside > 1)
                with ThreadPoolExecutor(6) as threads:
                    found = list(threads.map(lambda one: session.answers_beside([one])[0], requests))
                assert all(_is_equal(reply.outputs, y) for reply, y in zip(found, wanted, strict=True))
                assert session.memory.predicted_bytes <= limit
                assert session.memory.measured_bytes <= limit
            assert all(map(_is_equal, session.run_many(every), wanted))
            assert session.memory.measured_bytes <= limit


def test_a_session_that_is_closed_meanwhile_answers_what_has_begun(tmp_path: Path) -> None:
    """A model is unloaded while workers run: each answer is right, or says that the session is closed."""
    session = pliant.load(_saved(tmp_path), threads=2)
    request, wanted = session.request(_feeds(0)), session.run(_feeds(0))
    begun = threading.Barrier(5, timeout=60)

    def ask() -> int:
        for n in itertools.count():
            try:
                (reply,) = session.answers_beside([request])
            except InputError as error:
                assert "closed" in str(error)  # noqa: PT017 - which of many answers is the last is not known
                return n
            assert _is_equal(reply.outputs, wanted)
            if n == 0:
                begun.wait()
        raise AssertionError

    with ThreadPoolExecutor(4) as workers:
        asked = [workers.submit(ask) for _ in range(4)]
        begun.wait()
        assert _parallel(session)[1] > 0
        session.close()
        assert min(one.result(60) for one in asked) >= 1
    assert _parallel(session) == (0, 0)


def test_a_division_frees_the_arenas_of_the_last_one(tmp_path: Path) -> None:
    """Else a node that has fewer workers now would hold the memory of more."""
    with pliant.load(_saved(tmp_path), threads=2) as session:
        session.answers_beside([session.request(_feeds(0))])
        assert _parallel(session)[1] > 0
        session.divide_threads(1)
        assert _parallel(session) == (0, 0)
