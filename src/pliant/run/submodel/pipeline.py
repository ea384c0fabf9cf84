"""Run the program of one plan: load destinations, arrived parts, and the bits of each layer.

Tokens, plans and targets are handled by the session.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from pliant.compiler.executable.encoder_stages import ElasticEncoder
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.cost import Span
from pliant.ir.program import FULL, Compute, Load, Program, SliceRun, bind
from pliant.kernels.runtime.buffer import Buffer
from pliant.run.execute import StepFunctions, execute
from pliant.run.lanes import Lanes
from pliant.store.place_reads import place_reads
from pliant.store.read import Store, aligned_buffer


def _leading(mask: int) -> int:
    """The number of leading planes present without a gap."""
    return (~mask & (mask + 1)).bit_length() - 1


# The bits with which a slice can run, by its mask of arrived parts (bit p: plane p, bit 6: full fidelity).
_BITS = np.array([FULL_BITS if mask >> FULL & 1 else _leading(mask) for mask in range(128)])

OnRead = Callable[[SliceRun, np.ndarray], None]


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """One run of a pipeline: measured spans, the bits with which every shard ran, the bytes read in time."""

    spans: tuple[Span, ...]
    bits: tuple[tuple[int, ...], ...]
    read_bytes: int


@final
class RingBuffer:
    """The working buffer: one block for the layers being read, shared by the plans of a session."""

    def __init__(self) -> None:
        self.buffer = np.empty(0, np.uint8)
        self.memory = Buffer.of(self.buffer)

    @property
    def n_bytes(self) -> int:
        return int(self.buffer.nbytes)

    def fit(self, n_bytes: int) -> None:
        """Grow to at least `n_bytes`; no load may be in progress."""
        if n_bytes > self.buffer.nbytes:
            self.buffer = aligned_buffer(n_bytes)
            self.memory = Buffer.of(self.buffer)


@final
class Pipeline:
    """A program bound to an encoder, a store and a ring with slots for `n_slots` layers.

    `held` int [N, M] gives the planes that need no load. On an emulated device a read counts as arrived when
    the slower device would have it. `keep` is called with every run of slices that was read.
    """

    def __init__(
        self,
        program: Program,
        n_slots: int,
        store: Store,
        encoder: ElasticEncoder,
        ring: RingBuffer,
        held: np.ndarray,
        *,
        keep: OnRead | None = None,
    ) -> None:
        self.program = program
        self._bound: dict[tuple[int, bool], Program] = {}
        self.ring = ring
        self._store, self._encoder = store, encoder
        self._keep = keep
        widths = _widths(program)
        self._position = {layer: k for k, layer in enumerate(widths)}
        rows = held[list(widths), : max(widths.values())]
        self._held = np.where(rows == FULL_BITS, 1 << FULL, (1 << np.minimum(rows, FULL)) - 1)
        self._reads = place_reads(program, n_slots, store)
        self.ring_bytes = max(
            (at + extent.n_bytes for reads in self._reads.values() for extent, at in reads), default=0
        )

    def run(
        self,
        lanes: Lanes,
        lengths: tuple[int, ...],
        embed: Callable[[], None],
        head: Callable[[], None],
        *,
        is_timed: bool = True,
    ) -> PipelineRun:
        """Run once over texts of `lengths` tokens. `embed` fills `encoder.hidden`, `head` reads it.

        Without `is_timed`, latest starts are ignored: the run waits for the planned bits. Raises LaneError,
        chained to what failed: StoreError when a read does not match its hash.
        """
        self.ring.fit(self.ring_bytes)
        buffer, memory = self.ring.buffer, self.ring.memory
        arrived = self._held.copy()
        bits: list[tuple[int, ...]] = [()] * len(self._position)
        n_read = 0

        def compute(step: int, work: Compute) -> None:
            if work.layer is None or work.width is None:
                (embed if work.kernel == "embed" else head)()
                return
            k = self._position[work.layer]
            row = _BITS[arrived[k]]
            self._encoder.set_bits(work.layer, row)
            self._encoder.run(work.layer, work.width, lengths)
            bits[k] = tuple(row.tolist())

        def load(step: int, work: Load) -> None:
            nonlocal n_read
            k = self._position[work.layer]
            for extent, place in self._reads[work]:
                start_s = time.perf_counter()
                starts = self._store.read_extent(extent, buffer, place)
                lanes.emulated.rest_since(start_s, lanes.emulated.dilation.factor(work))
                for run, at in zip(extent.runs, starts, strict=True):
                    self._encoder.place(run.layer, run.part, run.first, run.count, memory, at)
                    arrived[k, run.first : run.first + run.count] |= 1 << run.part
                    n_bytes = self._store.run_bytes(run)
                    n_read += n_bytes
                    if self._keep is not None:
                        self._keep(run, buffer[at : at + n_bytes])

        key = sum(lengths), is_timed
        program = self._bound.get(key)
        if program is None:
            unbound = self.program if is_timed else self.program.untimed
            program = self._bound[key] = bind(unbound, {"tokens": sum(lengths)})
        spans = execute(program, StepFunctions(compute, load), lanes)
        return PipelineRun(spans, tuple(bits), n_read)


def _widths(program: Program) -> dict[int, int]:
    """The layers that run, in order, with their number of slices."""
    works = [step.work for step in program.steps if isinstance(step.work, Compute)]
    return {w.layer: w.width for w in works if w.layer is not None and w.width is not None}
