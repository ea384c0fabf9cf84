"""Compressed shards that stay between runs: the preload buffer (STI 3.1)."""

from collections.abc import Iterable

import numpy as np

from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.program import FULL, SliceRun
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.buffer import Buffer
from pliant.store.read import Store


class PreloadBuffer:
    """One block of memory for each run of slices held. Must not change while a program runs."""

    def __init__(self) -> None:
        self._held: dict[SliceRun, np.ndarray] = {}

    @property
    def runs(self) -> tuple[SliceRun, ...]:
        return tuple(self._held)

    @property
    def n_bytes(self) -> int:
        """Bytes of weights held."""
        return sum(block.nbytes for block in self.blocks)

    @property
    def blocks(self) -> tuple[np.ndarray, ...]:
        """The memory of each run held, for measurement; the IO thread may add to them meanwhile."""
        return tuple(self._held.values())

    def planes(self, shape: tuple[int, ...]) -> np.ndarray:
        """The number of leading planes held of every shard, without a gap, 32 for full fidelity: int64 [N, M]
        of `shape`.
        """
        parts = np.zeros((*shape, FULL + 1), bool)
        for run in self.runs:
            parts[run.layer, run.first : run.first + run.count, run.part] = True
        planes = np.cumprod(parts[..., :FULL], axis=-1).sum(axis=-1)
        return np.where(parts[..., FULL], FULL_BITS, planes).astype(np.int64)

    def buffer(self, run: SliceRun) -> Buffer:
        """The memory of the slices of a held run."""
        return Buffer.of(self._held[run])

    def fill(self, store: Store, wanted: Iterable[SliceRun]) -> None:
        """Hold exactly `wanted`: read missing runs, then free the rest.

        Raises StoreError on damage and then keeps its contents, since kernels may still point to them.
        """
        held = {run: self._held[run] if run in self._held else _read(store, run) for run in wanted}
        self._held = held

    def retain(self, wanted: Iterable[SliceRun]) -> None:
        """Free all runs that are not in `wanted`. Kernels must no longer use the freed runs."""
        kept = set(wanted)
        self._held = {run: block for run, block in self._held.items() if run in kept}

    def keep(self, run: SliceRun, payload: np.ndarray) -> None:
        """Hold a copy of the bytes read of `run`, aligned to a cache line."""
        self._held[run] = _copy(payload)


def _read(store: Store, run: SliceRun) -> np.ndarray:
    block = aligned_bytes(store.run_bytes(run))
    store.read(run, block)
    return block


def _copy(payload: np.ndarray) -> np.ndarray:
    block = aligned_bytes(payload.nbytes)
    block[:] = payload
    return block
