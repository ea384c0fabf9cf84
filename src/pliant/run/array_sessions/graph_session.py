"""A session on a compiled directory: one shape, one native call."""

from collections.abc import Sequence
from typing import final

import numpy as np

from pliant.compiler.aot.compiled_directory import CompiledDirectory
from pliant.errors import BudgetError
from pliant.ir.dilation import Dilation
from pliant.ir.port import static_port
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.run.arena import Arena
from pliant.run.array_sessions.array_memory import SessionArrays
from pliant.run.array_sessions.array_session import ArraySession
from pliant.run.graph.array_stage import AllTensors, ExecutableStage
from pliant.run.graph.graph_runner import GraphRunner, one_stage_runner
from pliant.run.session.ports import Feeds, Shapes


@final
class GraphSession(ArraySession):
    """Answers arrays of the shapes that its graph was compiled for; its weights stay mapped.

    Requests never run as one batch, since all shapes are fixed. They run beside each other, under a memory
    limit as many as have arenas within it.
    """

    def __init__(
        self,
        name: str,
        saved: CompiledDirectory,
        pool: ThreadPool,
        library: Library,
        dilation: Dilation = Dilation(),  # noqa: B008 - frozen
        *,
        memory_bytes: int | None = None,
    ) -> None:
        """Raises BudgetError where activations take more than `memory_bytes`."""
        needed = saved.program.arena_bytes
        if memory_bytes is not None and needed > memory_bytes:
            raise BudgetError(
                f"{memory_bytes} bytes of memory are too little for {name}: its weights stay mapped, but its "
                f"activations take {needed}. Give at least {needed} bytes, or compile it for smaller shapes."
            )
        inputs, outputs = (
            [static_port(x, t) for x, t in side.items()]
            for side in (saved.program.inputs, saved.program.outputs)
        )
        super().__init__(name, inputs, outputs, pool, library, dilation, memory_bytes=memory_bytes)
        self._arena = Arena()
        stage = ExecutableStage(saved.program, saved.weights, saved.addresses, pool, self._arena)
        self._kept: tuple[GraphRunner, ...] = (one_stage_runner(stage, pool),)
        self.identity = saved.identity
        if memory_bytes is not None:
            self._parallel.divide(pool.n_threads, memory_bytes - needed, self._kept)
            self._parallel.divide(None)

    @property
    def weight_bytes(self) -> int:
        return sum(array.nbytes for runner in self._kept for array in runner.weights.values())

    def close(self) -> None:
        """Free all memory, after the runs in progress; a later run raises an error. The pool stays open."""
        with self._turns.lock:
            self._closed, self._kept, self._arena = True, (), Arena()
            self._parallel.close()

    def _answer(self, feeds: Feeds, out: Feeds | None, shapes: Shapes) -> dict[str, np.ndarray]:
        return self._kept[0].walk(feeds, out)

    def _image_of(self, feeds: AllTensors, is_batch: bool = False) -> GraphRunner:
        return self._kept[0]

    def _runner(self, feeds: AllTensors) -> tuple[GraphRunner, AllTensors]:
        return self._kept[0], feeds

    def _runners(self) -> Sequence[GraphRunner]:
        return self._kept

    @property
    def _arrays(self) -> SessionArrays:
        return SessionArrays(self._kept, self._arena, self._parallel.memory)
