"""Programs of several steps on arrays: executables and numpy, and shapes that follow from data."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import CallEntry
from pliant.compiler.executable.image import make_image
from pliant.compiler.rules.rules import RULES
from pliant.errors import InputError
from pliant.ir.graph import TensorType
from pliant.ir.port import Port
from pliant.ir.program import Compute, Program, Segment, Step
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.onnx.onnx_file import open_onnx
from pliant.run.arena import Arena
from pliant.run.graph.array_stage import Arrays, ArrayStage, ExecutableStage, open_image
from pliant.run.graph.graph_runner import GraphRunner, one_stage_runner
from tests.models.one_graph import bind
from tests.models.onnx_models import parse

X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
SQUARES = "g (float[n] p) => (float[n] y) { y = Mul(p, p) }"
NEGATED = "g (float[2,3] x) => (float[2,3] n) { n = Neg(x) }"


@dataclass(eq=False)
class Positive:
    """The positive numbers of an array: as many as there are, which only the data says."""

    inputs: tuple[str, ...] = ("n",)
    outputs: tuple[str, ...] = ("p",)
    rows: tuple[CallEntry, ...] = ()
    weights: Arrays = field(default_factory=dict)
    arena_bytes: int = 0
    scratch_bytes: int = 0

    def walk(
        self, tensors: dict[str, np.ndarray], out: dict[str, np.ndarray] | None
    ) -> dict[str, np.ndarray]:
        n = tensors["n"]
        if not (n > 0).any():
            raise InputError("nothing is positive")
        return {"p": n[n > 0]}

    def walk_timed(self, tensors: Arrays) -> tuple[Arrays, np.ndarray]:
        return self.walk(tensors, None), np.zeros(1)

    def copy_for(self, pool: ThreadPool, arena: Arena) -> "Positive":
        return self


@dataclass(eq=False)
class Squared(Positive):
    """An executable that is compiled for the shape that it meets."""

    pool: ThreadPool | None = None
    library: Library | None = None
    found: list[tuple[int, ...]] = field(default_factory=list)
    inputs: tuple[str, ...] = ("p",)
    outputs: tuple[str, ...] = ("y",)

    def walk(
        self, tensors: dict[str, np.ndarray], out: dict[str, np.ndarray] | None
    ) -> dict[str, np.ndarray]:
        assert self.pool is not None
        assert self.library is not None
        self.found.append(tensors["p"].shape)
        assert "n" not in tensors, "no later step reads it"
        return _stage(SQUARES, {"p": tensors["p"].shape}, self.pool, self.library).walk(tensors, out)


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(host_isa())


@pytest.fixture
def pool(library: Library) -> Iterator[ThreadPool]:
    with ThreadPool(1, library) as opened:
        yield opened


def _stage(
    model: str, shapes: dict[str, tuple[int, ...]], pool: ThreadPool, library: Library
) -> ExecutableStage:
    graph = bind(open_onnx(parse(model).SerializeToString()), {}, {}, supported=RULES, shapes=shapes)
    return open_image(make_image(graph, Target(library.isa)), pool, library)


def _three_steps(pool: ThreadPool, library: Library, squared: Squared) -> GraphRunner:
    stages: dict[str, ArrayStage] = {
        "negate": _stage(NEGATED, {"x": (2, 3)}, pool, library),
        "NonZero": Positive(),
        "square": squared,
    }
    steps = tuple(Step("cpu", Compute(name, rows=1)) for name in stages)
    inputs = {"x": TensorType("float32", (2, 3))}
    return GraphRunner(
        Program((Segment(steps),), (), ()), stages, inputs, {"y": Port("y", "float32", (None,))}, pool
    )


def test_a_step_finds_its_kernels_for_the_shape_that_the_one_before_it_made(
    pool: ThreadPool, library: Library
) -> None:
    """What a detector keeps, nobody knows before it has looked: the next executable is chosen then."""
    squared = Squared(pool=pool, library=library)
    runner = _three_steps(pool, library, squared)
    np.testing.assert_array_equal(runner.walk({"x": X}, None)["y"], [1, 9, 25])
    np.testing.assert_array_equal(runner.walk({"x": -X}, None)["y"], [4, 16, 36])
    np.testing.assert_array_equal(runner.walk({"x": np.minimum(X, 0)}, None)["y"], [1, 9, 25])
    assert squared.found == [(3,)] * 3
    out = {"y": np.zeros(3, np.float32)}
    assert runner.walk({"x": X}, out)["y"] is out["y"]
    assert [span.step for span in runner.spans] == [0, 1, 2]


def test_what_a_step_raises_is_raised_as_it_is(pool: ThreadPool, library: Library) -> None:
    """The caller's feeds are at fault, and no lane; the next run starts clean."""
    runner = _three_steps(pool, library, Squared(pool=pool, library=library))
    with pytest.raises(InputError, match=r"^nothing is positive$"):
        runner.walk({"x": np.abs(X)}, None)
    assert len(runner.walk({"x": X}, None)["y"]) == 3


def test_a_profile_shows_steps_without_kernel_calls_too(pool: ThreadPool, library: Library) -> None:
    """A step in numpy takes time as any other: the timeline has it, the table of kernels has not."""
    found = _three_steps(pool, library, Squared(pool=pool, library=library)).profile({"x": X}, 2)
    assert [span.step for span in found.spans] == [0, 1, 2]
    assert len(found.steps) == len(found.calls) == 1
    assert found.calls[0].end_s <= found.spans[0].end_s
    assert "cpu |" in str(found)
    assert len([e for e in found.chrome_trace()["traceEvents"] if e["ph"] == "X"]) == 4


def test_a_runner_that_is_dropped_goes_at_once(pool: ThreadPool, library: Library) -> None:
    """It holds weights and an arena: they must not wait for the garbage collector."""
    runner = one_stage_runner(_stage(NEGATED, {"x": (2, 3)}, pool, library), pool)
    runner.walk({"x": X}, None)
    gone = weakref.ref(runner.stages["graph"])
    gc.disable()
    try:
        del runner
        assert gone() is None
    finally:
        gc.enable()
