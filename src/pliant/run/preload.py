"""The preload buffer: compressed shards that stay between runs (STI 3.1). Knows runs and bytes, not plans."""

from collections.abc import Iterable

import numpy as np

from pliant.store.read import Run, Store, aligned_buffer


class PreloadBuffer:
    """One block of memory for each run held. Not thread-safe against `fill` while a run is under way."""

    def __init__(self) -> None:
        self._held: dict[Run, np.ndarray] = {}

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(self._held)

    @property
    def n_bytes(self) -> int:
        """Bytes of weights held."""
        return sum(block.nbytes for block in self._held.values())

    def address(self, run: Run) -> int:
        """Where the first slice of a run that is held lies."""
        return int(self._held[run].ctypes.data)

    def fill(self, store: Store, wanted: Iterable[Run]) -> None:
        """Hold exactly `wanted`: let go of the rest, read what is missing. Raises StoreError on damage."""
        wanted = tuple(wanted)
        for run in set(self._held) - set(wanted):
            del self._held[run]
        for run in wanted:
            if run in self._held:
                continue
            n_bytes = store.run_bytes(run)
            buffer = aligned_buffer(n_bytes + 2 * 4096)
            at = store.read(run, buffer, 0)
            self._held[run] = buffer[at : at + n_bytes].copy()

    def keep(self, run: Run, payload: np.ndarray) -> None:
        """Hold a copy of what a run has just read, so that the next one need not."""
        self._held[run] = payload.copy()
