"""The weights of one session in memory: preload buffer, working buffer, and weights kept by an engagement."""

from collections.abc import Iterable
from typing import final

import numpy as np

from pliant.ir.program import Program, SliceRun
from pliant.run.lanes import Lanes
from pliant.run.submodel.engine import Engine
from pliant.run.submodel.pipeline import Pipeline, RingBuffer
from pliant.run.submodel.preload_buffer import PreloadBuffer
from pliant.store.read import Store


@final
class WeightMemory:
    """Holds weights for an engine, and binds programs to them. Must not change while a program runs.

    While `keep_bytes` is set, weights that runs read are kept in the preload buffer, up to that many bytes
    (STI 3.3). `working_bytes` is the largest read of the bound plans into the current working buffer.
    """

    def __init__(self, store: Store, engine: Engine, lanes: Lanes) -> None:
        self.keep_bytes: int | None = None
        self._store, self._engine, self._lanes = store, engine, lanes
        self._preload, self._ring, self.working_bytes = PreloadBuffer(), RingBuffer(), 0

    @property
    def n_bytes(self) -> int:
        """Bytes of weights in memory: preload buffer and working buffer."""
        return self.preload_bytes + self._ring.n_bytes

    @property
    def preload_bytes(self) -> int:
        """Bytes in the preload buffer."""
        return self._preload.n_bytes

    @property
    def blocks(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """The memory of the preload buffer, run by run, and of the working buffer, for measurement."""
        return self._preload.blocks, self._ring.buffer

    @property
    def preload_runs(self) -> tuple[SliceRun, ...]:
        """The runs of slices in the preload buffer."""
        return self._preload.runs

    def planes(self) -> np.ndarray:
        """The number of leading planes of every shard in the preload buffer, 32 for full fidelity: int64 [N,
        M].
        """
        spec = self._store.spec
        return self._preload.planes((spec.n_layers, spec.n_heads))

    def fill(self, runs: Iterable[SliceRun]) -> None:
        """Preload exactly `runs`. Pipelines bound before must not run any more.

        Raises StoreError on damage and then keeps its contents.
        """
        self._preload.fill(self._store, runs)
        self._empty_ring()

    def retain(self, wanted: Iterable[SliceRun]) -> None:
        """Free preloaded runs that are not in `wanted`, and the working buffer: call before `fill` when
        memory is short. Pipelines bound before must not run any more.
        """
        self._preload.retain(wanted)
        self._empty_ring()

    def engage(self, keep_bytes: int) -> None:
        """Keep the weights that runs read from now on. Pipelines bound before must not run any more."""
        self.keep_bytes = keep_bytes
        self._empty_ring()

    def clear(self) -> None:
        """Free all weights. No pipeline may run any more."""
        self._preload = PreloadBuffer()
        self._empty_ring()

    def bind(self, program: Program, n_slots: int, working_bytes: int) -> Pipeline:
        """The pipeline that runs `program` over the weights held.

        The reads of at most `n_slots` layers are in memory at once; `working_bytes` are planned for them.
        """
        pipeline = Pipeline(
            program,
            n_slots,
            self._store,
            self._engine.encoder,
            self._ring,
            self.planes(),
            keep=None if self.keep_bytes is None else self._keep,
        )
        self._lanes.drain()
        self._ring.fit(pipeline.ring_bytes)
        self.working_bytes = max(self.working_bytes, working_bytes)
        for run in self._preload.runs:
            held = self._preload.buffer(run)
            self._engine.encoder.place(run.layer, run.part, run.first, run.count, held)
        return pipeline

    def is_bound(self, pipeline: Pipeline) -> bool:
        """Whether `pipeline` was bound to the weights held now; an outdated one would read freed memory."""
        return pipeline.ring is self._ring

    def _empty_ring(self) -> None:
        """Replace the working buffer, so that it may shrink."""
        self._ring, self.working_bytes = RingBuffer(), 0

    def _keep(self, run: SliceRun, payload: np.ndarray) -> None:
        if self.keep_bytes is not None and self.preload_bytes + payload.nbytes <= self.keep_bytes:
            self._preload.keep(run, payload)
