"""The layers of a BERT-family encoder as kernel tables over one arena.

Knows dimensions, resident parameters and kernels. Where the compressed weights lie, and which of them
have arrived, is the caller's business: it says so by `place` and `set_bits`.
"""

from collections.abc import Sequence

import numpy as np

from pliant.compile.arena import make_arena
from pliant.compile.kernels import Kernels, Precise
from pliant.compile.layer import LayerTable
from pliant.compile.weights import Weights
from pliant.kernels import attention, gemm
from pliant.kernels.gemm_int8 import scratch_bytes_int8
from pliant.kernels.pool import Pool
from pliant.models.slices import slice_geometry
from pliant.models.spec import ModelSpec
from pliant.store.encode import ResidentLayer


class Encoder:
    """The layers of one model, ready to run at any width up to `width` on up to `tokens` rows.

    Holds one descriptor array a layer and one kernel table for each (layer, width) that was asked for.
    Not thread-safe: one run at a time.
    """

    def __init__(
        self,
        spec: ModelSpec,
        resident: Sequence[ResidentLayer],
        kernels: Kernels,
        pool: Pool,
        *,
        tokens: int,
        width: int | None = None,
        compute: Precise = "fp32",
    ) -> None:
        self.spec = spec
        self.geometry = slice_geometry(spec)
        self.compute = compute
        self._width = width or spec.n_heads
        self._kernels = kernels
        self._pool = pool
        self._layers = [Weights(self.geometry, spec.precision, r, kernels.isa, compute) for r in resident]
        self._tables: dict[tuple[int, int], LayerTable] = {}
        self.reserve(tokens)

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` rows; what the arena held is lost."""
        self.arena = make_arena(self.geometry, self._width, tokens, self.compute)
        self._tables.clear()
        needed = max(
            gemm.scratch_bytes(self._kernels.isa),
            attention.scratch_bytes(self.geometry.head_dim, tokens, self._kernels.isa),
            scratch_bytes_int8(max(self.geometry.hidden, self._width * self.geometry.slice_ffn))
            if self.compute == "int8"
            else 0,
        )
        self._pool.reserve(needed)

    @property
    def table_bytes(self) -> int:
        """Bytes of descriptors and decode tables."""
        return sum(layer.n_bytes for layer in self._layers)

    def place(self, layer: int, part: int, first: int, count: int, address: int) -> None:
        """Say where one part of `count` neighbouring slices of `layer` lies: slice `first` at `address`."""
        self._layers[layer].place(part, first, count, address)

    def set_bits(self, layer: int, bits: Sequence[int] | np.ndarray) -> None:
        """Run the leading slices of `layer` with `bits`: 1..6 planes, or 32 for full fidelity."""
        self._layers[layer].set_bits(bits)

    def run(self, layer: int, width: int, n_tokens: int) -> None:
        """Run one layer at `width` slices over the first `n_tokens` rows of `arena.hidden`, in place."""
        table = self._tables.get((layer, width))
        if table is None:
            table = LayerTable(
                self.spec, self.geometry, self._layers[layer], self._kernels, self.arena, width,
                self._pool.n_threads, self.compute,
            )  # fmt: skip
            self._tables[layer, width] = table
        table.bind(n_tokens)
        self._pool.walk(table.table)
