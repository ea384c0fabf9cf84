"""Run a store's model with this machine's kernels: embedding, layers and head, one call each.

`hold` loads weights before the run; `pipeline.py` loads weights while layers run.
"""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType

import numpy as np

from pliant.compiler.executable.encoder_stages import ElasticEncoder
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.program import FULL, SliceRun
from pliant.kernels.emit.isa import Isa, host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.models.tokenizer import TokenizedInput
from pliant.run.submodel.preload_buffer import PreloadBuffer
from pliant.settings import thread_count
from pliant.store.read import Store


class Engine:
    """Kernels, threads and arena for one store; a context manager. One run at a time."""

    def __init__(
        self,
        store: Store,
        *,
        n_threads: int | None = None,
        cache: Path | None = None,
        tokens: int = 128,
        compute: ComputeDtype = "fp32",
        isa: Isa | None = None,
    ) -> None:
        self.store = store
        self.spec = store.spec
        library = Library(isa or host_isa(), cache)
        self.pool = ThreadPool(thread_count(n_threads), library)
        resident = [store.resident(i) for i in range(store.spec.n_layers)]
        self.encoder = ElasticEncoder(
            store.spec, resident, store.embeddings, store.head, library, self.pool,
            tokens=min(tokens, store.spec.max_tokens), compute=compute,
        )  # fmt: skip
        self._held = PreloadBuffer()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads and free the memory; the store stays open."""
        self.pool.close()
        self.encoder.close()
        self._held = PreloadBuffer()

    @property
    def arena_bytes(self) -> int:
        return self.encoder.arena_bytes

    def reserve(self, tokens: int) -> None:
        """Make room for inputs of `tokens` tokens; a no-op when there is."""
        if tokens > self.encoder.tokens:
            self.encoder.reserve(tokens)

    def embed(self, ids: np.ndarray, types: np.ndarray) -> None:
        """Fill `encoder.hidden` with the first layer's input; ids and types are int32 [T]."""
        self.reserve(len(ids))
        self.encoder.embed(ids, types)

    def embed_texts(self, texts: Sequence[TokenizedInput]) -> None:
        """Fill `encoder.hidden` with the first layer's input: the rows of all texts, concatenated."""
        lengths = [len(text.ids) for text in texts]
        self.reserve(sum(lengths))
        for text, first in zip(texts, accumulate(lengths, initial=0), strict=False):
            self.encoder.embed(text.ids, text.types, first)

    def layer(self, layer: int, width: int, n_tokens: int) -> None:
        """Run one layer over one text with its current weights and bits."""
        self.encoder.run(layer, width, (n_tokens,))

    def set_bits(self, layer: int, bits: np.ndarray) -> None:
        """Set the bits of the leading slices of `layer`; `bits` must not exceed what is held."""
        self.encoder.set_bits(layer, bits)

    def head(self, n_tokens: int) -> np.ndarray:
        """Logits, float32 [labels], or the embedding vector, float32 [hidden]."""
        return self.encoder.head(n_tokens)

    def heads(self, lengths: Sequence[int]) -> list[np.ndarray]:
        """The result of `head` for each of the texts of `lengths` tokens."""
        firsts = accumulate(lengths, initial=0)
        return [self.encoder.head(n, first) for n, first in zip(lengths, firsts, strict=False)]

    def hold(self, bits: np.ndarray) -> None:
        """Read weights into memory for later runs: `bits` int [n_layers, n_heads], 0 where not needed.

        Raises StoreError when a shard is damaged.
        """
        self._held.fill(self.store, runs_of(bits))
        for run in self._held.runs:
            self.encoder.place(run.layer, run.part, run.first, run.count, self._held.buffer(run))
        for layer, row in enumerate(bits):
            self.encoder.set_bits(layer, row)

    def answer(self, encoded: TokenizedInput, layers: tuple[int, ...], width: int) -> np.ndarray:
        """Run a submodel whose weights are held: `layers` in order, each with its leading `width` slices."""
        return self.answers([encoded], layers, width)[0]

    def answers(
        self, texts: Sequence[TokenizedInput], layers: tuple[int, ...], width: int
    ) -> list[np.ndarray]:
        """As `answer`, for all texts in one run: each layer runs once, over the rows of all of them."""
        lengths = tuple(len(text.ids) for text in texts)
        self.embed_texts(texts)
        for layer in layers:
            self.encoder.run(layer, width, lengths)
        return self.heads(lengths)


def runs_of(bits: np.ndarray) -> tuple[SliceRun, ...]:
    """The weight parts that `bits`, int [n_layers, n_heads], need; neighbouring slices of one part form one
    run.
    """
    runs = []
    for layer, row in enumerate(np.asarray(bits)):
        for part in range(FULL + 1):
            wanted = row == FULL_BITS if part == FULL else (row > part) & (row != FULL_BITS)
            edges = np.flatnonzero(np.diff(np.concatenate([[0], wanted.astype(int), [0]])))
            runs += [
                SliceRun(layer, part, int(a), int(b - a))
                for a, b in zip(edges[::2], edges[1::2], strict=True)
            ]
    return tuple(runs)
