"""What stands before and behind the layers: embedding and head, on kernels. Knows no layers."""

import numpy as np

from pliant.compile.arena import Arena
from pliant.compile.dense import Dense
from pliant.compile.kernels import Kernels
from pliant.compile.layer import norm_args
from pliant.kernels.embed import EmbedArgs, EmbedFormats
from pliant.kernels.pool import Pool, Table
from pliant.kernels.rowwise import MeanArgs, mean_units
from pliant.models.spec import ModelSpec
from pliant.models.table import QuantizedTable
from pliant.store.files import Embeddings, HeadWeights


def embed_formats(embeddings: Embeddings) -> EmbedFormats:
    """How the tables of a store are read by the embedding kernel."""
    word = "codes" if isinstance(embeddings.word, QuantizedTable) else embeddings.word.precision
    return EmbedFormats(word, "F32", None if embeddings.types is None else "F32")


class Embedder:
    """Token ids to the first layer's input: three tables, layer norm, and ELECTRA's projection."""

    def __init__(
        self, spec: ModelSpec, embeddings: Embeddings, arena: Arena, kernels: Kernels, pool: Pool
    ) -> None:
        self._pool, self._arena, self._embeddings = pool, arena, embeddings
        n_hidden = arena.hidden.shape[1]
        n = spec.embedding
        if embeddings.project is None:
            out = arena.hidden
            self._project = None
        else:
            out = np.zeros((arena.tokens, -(-n // 32) * 32), np.float32)
            self._project = Dense(embeddings.project, None, out, arena.tokens, kernels, pool)
        n_padded = out.shape[1]
        self._ids = np.zeros(arena.tokens, np.int32)
        self._types = np.zeros(arena.tokens, np.int32)
        word, types = embeddings.word, embeddings.types
        table, codebook = (
            (word.codes, word.codebook.ctypes.data)
            if isinstance(word, QuantizedTable)
            else (word.values, None)
        )
        self._args = EmbedArgs(
            ids=self._ids.ctypes.data,
            types=self._types.ctypes.data,
            word=table.ctypes.data,
            word_codebook=codebook,
            position=embeddings.position.ctypes.data,
            type=None if types is None else types.ctypes.data,
            first_position=spec.position_offset,
            out=out.ctypes.data,
            ld_out=n_padded,
            n=n,
            n_padded=n_padded,
        )
        self._hidden = n_hidden
        self._table = Table()
        self._table.add(kernels.embed, self._args, 1)
        self._table.add(
            kernels.layer_norm, norm_args(out, out, embeddings.norm, n, n_padded, spec.norm_eps), 1
        )

    def run(self, ids: np.ndarray, types: np.ndarray) -> None:
        """Fill the first len(ids) rows of `arena.hidden`. Raises StoreError when a row read is damaged."""
        n = len(ids)
        self._embeddings.check(ids)
        self._ids[:n] = ids
        self._types[:n] = types
        self._table.resize(0, n)
        self._table.resize(1, n)
        self._pool.walk(self._table)
        if self._project is not None:
            self._arena.hidden[:n, : self._project.n_out] = self._project.run(n)


class HeadRunner:
    """The last layer's tokens to logits, or to an embedding vector."""

    def __init__(
        self, spec: ModelSpec, head: HeadWeights, arena: Arena, kernels: Kernels, pool: Pool
    ) -> None:
        self._spec, self._arena, self._pool = spec, arena, pool
        self._pooled = np.zeros((1, arena.hidden.shape[1]), np.float32)
        x = self._pooled
        self._dense = self._classifier = None
        if head.dense is not None:
            self._dense = Dense(head.dense, spec.head.dense, x, 1, kernels, pool)
            x = self._dense.y
        if head.classifier is not None:
            self._classifier = Dense(head.classifier, None, x, 1, kernels, pool)
        self._mean = MeanArgs(
            x=arena.hidden.ctypes.data,
            ld_x=arena.hidden.shape[1],
            out=self._pooled.ctypes.data,
            n=self._pooled.shape[1],
        )
        self._table = Table()
        self._table.add(kernels.mean, self._mean, mean_units(self._pooled.shape[1]))

    def run(self, n_tokens: int) -> np.ndarray:
        """Logits, float32 [labels], or the pooled vector, float32 [hidden]; a new array."""
        if self._spec.head.pooling == "cls":
            self._pooled[0] = self._arena.hidden[0]
        else:
            self._mean.n_rows = n_tokens
            self._pool.walk(self._table)
        answer = self._pooled[0, : self._spec.hidden]
        if self._dense is not None:
            answer = self._dense.run(1)[0]
        if self._classifier is not None:
            answer = self._classifier.run(1)[0]
        if self._spec.head.is_normalized:
            return np.asarray(answer / max(float(np.sqrt((answer * answer).sum())), 1e-12))
        return answer.copy()
