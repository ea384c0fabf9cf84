"""A session on a compiled directory: one shape, one native call."""

from collections.abc import Sequence
from typing import final

import numpy as np

from pliant.compiler.aot.compiled_directory import Saved
from pliant.kernels.runtime.thread_pool import Pool
from pliant.run.arena import Arena
from pliant.run.graph.array_session import ArraySession
from pliant.run.graph.graph_runner import GraphRunner
from pliant.run.graph.ports import Feeds, Shapes


@final
class GraphSession(ArraySession):
    """Answers arrays of the shapes that its graph was compiled for; its weights stay mapped."""

    def __init__(self, name: str, saved: Saved, pool: Pool, dilation: float = 1.0) -> None:
        self._arena = Arena()
        runner = GraphRunner(saved.program, saved.weights, saved.addresses, pool, self._arena)
        super().__init__(name, runner.inputs, runner.outputs, pool, dilation)
        self.identity = saved.identity
        self._kept: tuple[GraphRunner, ...] = (runner,)

    @property
    def weight_bytes(self) -> int:
        return sum(array.nbytes for runner in self._kept for array in runner.weights.values())

    def close(self) -> None:
        """Let go of all memory; running afterwards is an error. The pool stays open."""
        with self._turns.lock:
            self._closed, self._kept, self._arena = True, (), Arena()

    def _answer(self, feeds: Feeds, out: Feeds | None, shapes: Shapes) -> dict[str, np.ndarray]:
        return self._kept[0].walk(feeds, out)

    def _runner(self, feeds: Feeds) -> tuple[GraphRunner, Feeds]:
        return self._kept[0], feeds

    def _runners(self) -> Sequence[GraphRunner]:
        return self._kept
