"""Steps of a program that run in numpy between executables."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never, final

import numpy as np

from pliant.arrays import Float64
from pliant.compiler.executable.encode_image import CallEntry
from pliant.errors import GraphError
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.onnx.bind.onnx_blocks import ScopedNode
from pliant.run.arena import Arena
from pliant.run.graph.array_stage import AllTensors, Tensors
from pliant.run.session.ports import Feeds, copy_into

if TYPE_CHECKING:
    from pliant.run.host.block_stage import BlockStage

HostWork = Callable[[Sequence[Any], AllTensors], Sequence[Any]]

HOST_KERNEL = "host"
"""The kernel name in the one row of a numpy step."""


@final
class HostStage:
    """One node in numpy: an `ArrayStage` (run/graph/array_stage.py) of one row and no kernel call.

    `run` computes the node's outputs from its inputs and all tensors made so far, which its `bodies` read.
    `known` holds the inputs with constant values.
    """

    def __init__(
        self, placed: ScopedNode, known: Feeds, run: HostWork, bodies: "Sequence[BlockStage]" = ()
    ) -> None:
        node = placed.node
        self.inputs = tuple(sorted(placed.reads - known.keys()))
        self.outputs = tuple(placed.makes)
        self.rows: Sequence[CallEntry] = (
            CallEntry(HOST_KERNEL, 0, 1, 1, node.name or node.output[0], op=node.op_type),
        )
        self.weights: Feeds = {}
        self.arena_bytes = self.scratch_bytes = 0
        self.bodies = bodies
        self._wanted, self._made = tuple(node.input), tuple(node.output)
        self._known = {x: known[x] for x in self._wanted if x in known}
        self._run = run

    def walk(self, tensors: AllTensors, out: Feeds | None) -> Tensors:
        """Its outputs; those of `out` are copied into the arrays given there. Raises InputError."""
        there: Mapping[str, Any] = {**self._known, **tensors} if self._known else tensors
        found = self._run([there[x] if x else None for x in self._wanted], tensors)
        return {y: copy_into(out, y, value) for y, value in zip(self._made, found, strict=False) if y}

    def walk_timed(self, tensors: AllTensors) -> tuple[Tensors, Float64[np.ndarray, " ends"]]:
        """As `walk`, with the time that it took."""
        start_s = time.perf_counter()
        made = self.walk(tensors, None)
        return made, np.array([0.0, time.perf_counter() - start_s])

    def copy_for(self, pool: ThreadPool, arena: Arena) -> Never:
        raise concurrency_error(self.rows[0].label)


def copy_shared(answer: AllTensors, feeds: AllTensors, out: Feeds | None) -> Tensors:
    """The answer in arrays that the caller may modify: arrays that share memory with feeds or constants are
    copied.

    Host steps may return views, or read-only constants. Arrays of `out` are not copied.
    """
    fed = list(_arrays(feeds.values()))
    return {y: value if out and y in out else _own(value, fed) for y, value in answer.items()}


def _own(value: Any, fed: Sequence[np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_own(x, fed) for x in value]
    if value is None or (value.flags.writeable and not any(np.may_share_memory(value, x) for x in fed)):
        return value
    return value.copy()


def _arrays(values: Iterable[Any]) -> Iterator[np.ndarray]:
    """The arrays of feeds, including those in sequences."""
    for value in values:
        if isinstance(value, list):
            yield from _arrays(value)
        elif value is not None:
            yield value


def concurrency_error(label: str) -> GraphError:
    """The error for a step that cannot run concurrently with itself."""
    return GraphError(f"{label!r} runs on the host, one run after another.")
