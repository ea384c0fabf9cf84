"""A store's model as compiled graphs over one arena: embedding, layers of any width, head.

The caller manages the compressed weights: it reports their addresses and which of them have arrived with
`place` and `set_bits`.
"""

from collections.abc import Sequence
from typing import final

import numpy as np

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import image_kernels
from pliant.compiler.executable.kernel_addresses import load_kernels
from pliant.compiler.executable.stage import BoundStage, StageForm, coded_form
from pliant.compiler.executable.weight_inputs import LayerSlices, PlainWeights, norm_buffers, plain_bytes
from pliant.ir.executable import ALIGNMENT, ARENA
from pliant.kernels.attention.attention_texts import text_blocks
from pliant.kernels.emit.isa import X86_64, host_isa
from pliant.kernels.runtime.aligned_memory import zeroed_bytes
from pliant.kernels.runtime.buffer import Buffer
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_graph import (
    BLOCK_WORDS,
    ComputeDtype,
    TableFormat,
    embedding_graph,
    head_graph,
    layer_graph,
)
from pliant.models.slice_shapes import slice_geometry
from pliant.models.spec import ModelSpec
from pliant.models.token_ids import check_ids
from pliant.models.word_table import QuantizedTable
from pliant.store.coding.encode_layer import RESIDENT_ARRAYS, ResidentLayer
from pliant.store.store_files import Embeddings, HeadWeights, LinearWeights


@final
class ElasticEncoder:
    """One model, ready to run at any width on up to `tokens` rows, of one text or of several.

    `hidden`, float32 [tokens, padded d], is the input and output of every layer; the rows of several texts
    are concatenated without padding. Each text attends only to itself. Its answer equals that of the text
    alone up to rounding: with other rows, a product may sum the numbers of a row in another order. Integers
    are exact: with `compute` int8 the answers are bit-identical.

    Caches one form for each width and one stage for each (layer, width) used. Not thread-safe: one run at a
    time.
    """

    hidden: np.ndarray
    arena: np.ndarray
    arena_bytes: int

    def __init__(
        self,
        spec: ModelSpec,
        resident: Sequence[ResidentLayer],
        embeddings: Embeddings,
        head: HeadWeights,
        library: Library,
        pool: ThreadPool,
        *,
        tokens: int,
        compute: ComputeDtype = "fp32",
    ) -> None:
        self.spec = spec
        self._compute, self._library, self._pool = compute, library, pool
        self._target = Target(library.isa, pool.n_threads)
        self._kernels: dict[str, int] = {}
        self._layers = [LayerSlices(spec, r, library.isa, compute) for r in resident]
        self._embeddings, self._ends = embeddings, head
        self._plain = [PlainWeights(name, linear) for name, linear in plain_layers(embeddings, head).items()]
        self.reserve(tokens)

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` rows; the contents of `hidden` are lost."""
        self.tokens = 0  # after an interrupt there is no room for any input
        self._stages: dict[tuple[int, int], BoundStage] = {}
        self._forms: dict[int, StageForm] = {}
        embedding = coded_form(
            embedding_graph(self.spec, word_format(self._embeddings), tokens), self._target
        )
        head = coded_form(head_graph(self.spec, tokens), self._target)
        layer = self._form(self.spec.n_heads, tokens, (embedding, head))
        n_bytes = _align(max(form.image.arena_bytes for form in (embedding, layer, head)))
        columns = slice_geometry(self.spec).hidden
        block = self.arena = zeroed_bytes(n_bytes + 4 * tokens * columns)
        self.arena_bytes = block.nbytes
        self.hidden = block[n_bytes:].view(np.float32).reshape(tokens, columns)
        self._ids, self._types = np.zeros((2, tokens), np.int32)
        self._lengths: tuple[int, ...]
        self._blocks, self._lengths = np.zeros((tokens, BLOCK_WORDS), np.int64), ()
        self._answer = np.zeros(head.program.outputs["answer"].shape, np.float32)
        hidden = Buffer.of(self.hidden)
        self._at = {ARENA: Buffer.of(block), "hidden": hidden, "out": hidden}
        self._at["blocks"] = Buffer.of(self._blocks)
        at = self._at | {x: buffer for plain in self._plain for x, buffer in plain.buffers.items()}
        at |= {"ids": Buffer.of(self._ids), "types": Buffer.of(self._types)}
        at |= _tables(self._embeddings) | {"answer": Buffer.of(self._answer)}
        around = {"embedding": embedding, "head": head}
        self._around = {name: BoundStage(form, self._kernels, at) for name, form in around.items()}
        self.tokens = tokens

    def close(self) -> None:
        """Free the arena and the other arrays that kernels read; it cannot run afterwards."""
        self.tokens, self._stages, self._around, self._at = 0, {}, {}, {}
        self._layers, self._plain = [], []
        self.arena = self.hidden = np.empty(0, np.float32)
        self.arena_bytes = 0

    @property
    def fixed_arrays(self) -> list[np.ndarray]:
        """The arrays that every plan needs, as counted by `fixed_bytes`, for measurement."""
        own = [array for layer in self._layers for array in layer.arrays]
        own += [array for plain in self._plain for array in plain.arrays]
        stored = [getattr(layer.resident, name) for layer in self._layers for name in RESIDENT_ARRAYS]
        books = [book for layer in self._layers for book in layer.resident.codebooks.values()]
        return [*own, *stored, *books, *_end_arrays(self._embeddings, self._ends)]

    def place(self, layer: int, part: int, first: int, count: int, memory: Buffer, offset: int = 0) -> None:
        """Set the address of one part of `count` adjacent slices of `layer`: byte `offset` of `memory`.

        The caller keeps the memory alive while the slices run. Raises ValueError if it is too small.
        """
        self._layers[layer].place(part, first, count, memory, offset)

    def set_bits(self, layer: int, bits: Sequence[int] | np.ndarray) -> None:
        """Run the leading slices of `layer` with `bits`: 1..6 planes, or 32 for full fidelity."""
        self._layers[layer].set_bits(bits)

    def embed(self, ids: np.ndarray, types: np.ndarray, first: int = 0) -> None:
        """Fill the n rows of `hidden` from row `first` on with a text; ids and types int32 [n].

        Raises InputError for an id or type that the model does not have, StoreError for a damaged row.
        """
        n = len(ids)
        check_ids(ids, self.spec.vocab, "token id")
        check_ids(types, max(self.spec.n_types, 1), "token type")
        self._embeddings.check(ids)
        self._ids[:n] = ids
        self._types[:n] = types
        self._around["embedding"].point("out", self._row(first))
        self._around["embedding"].walk((n,), self._pool)

    def run(self, layer: int, width: int, lengths: tuple[int, ...]) -> None:
        """Run a layer at `width` slices, in place, over the rows in `hidden` of texts of `lengths` tokens."""
        if lengths != self._lengths:
            self._lengths = ()  # after an interrupt the blocks match no lengths
            blocks = text_blocks(lengths, self._target.isa)
            self._blocks[: len(blocks)] = blocks
            self._lengths = lengths
        stage = self._stages.get((layer, width))
        if stage is None:
            at = self._at | self._layers[layer].buffers
            stage = self._stages[layer, width] = BoundStage(self._form(width, self.tokens), self._kernels, at)
        with self._layers[layer].column_sums(width):
            stage.walk(lengths, self._pool)

    def head(self, n_tokens: int, first: int = 0) -> np.ndarray:
        """Logits, float32 [labels], or the pooled vector, float32 [hidden], of the text of `n_tokens` rows
        from row `first` on; a new array."""
        self._around["head"].point("hidden", self._row(first))
        self._around["head"].walk((n_tokens,), self._pool)
        head = self.spec.head
        answer = self._answer[0, : self.spec.hidden if head.labels is None else len(head.labels)].copy()
        if head.is_normalized:
            answer /= max(float(np.sqrt((answer * answer).sum())), 1e-12)
        return answer

    def _row(self, row: int) -> Buffer:
        """`hidden` from row `row` on."""
        hidden = self._at["hidden"]
        return hidden.part(row * self.hidden.strides[0]) if row else hidden

    def _form(self, width: int, tokens: int, others: Sequence[StageForm] = ()) -> StageForm:
        """The layer's form at `width` for `tokens` rows; the kernels of `others` are loaded together with its
        kernels.
        """
        form = self._forms.get(width)
        if form is None:
            form = coded_form(layer_graph(self.spec, width, tokens, self._compute), self._target)
            assert form.image.may_replace("out", "hidden"), f"a layer of {width} slices cannot run in place"
            self._forms[width] = form
        wanted = {name: k for f in (form, *others) for name, k in image_kernels(f.image).items()}
        missing = {name: k for name, k in wanted.items() if name not in self._kernels}
        if missing:
            self._kernels |= load_kernels(missing, self._library)
        self._pool.reserve(max(f.image.scratch_bytes for f in (form, *others)))
        return form


def arena_bytes(spec: ModelSpec, word: TableFormat, tokens: int, compute: ComputeDtype = "fp32") -> int:
    """Bytes of the activations of up to `tokens` rows, before anything is allocated.

    The same on all CPUs except with AMX, whose float32 products store their rows in two parts.
    """
    isa = host_isa() if host_isa().has_tiles else X86_64
    graphs = (
        embedding_graph(spec, word, tokens),
        head_graph(spec, tokens),
        layer_graph(spec, spec.n_heads, tokens, compute),
    )
    most = max(coded_form(graph, Target(isa)).image.arena_bytes for graph in graphs)
    return _align(most) + 4 * tokens * slice_geometry(spec).hidden


def fixed_bytes(
    spec: ModelSpec,
    resident: Sequence[ResidentLayer],
    embeddings: Embeddings,
    head: HeadWeights,
    compute: ComputeDtype = "fp32",
) -> int:
    """Bytes of the arrays that every plan of a model needs: codebooks, outliers, biases, norms, embeddings
    and head.

    The word table does not count: it stays mapped.
    """
    layers = (LayerSlices(spec, layer, host_isa(), compute) for layer in resident)
    own = sum(array.nbytes for layer in layers for array in layer.arrays)
    plain = sum(map(plain_bytes, plain_layers(embeddings, head).values()))
    ends = sum(array.nbytes for array in _end_arrays(embeddings, head))
    return own + plain + ends + sum(layer.n_bytes for layer in resident)


def plain_layers(embeddings: Embeddings, head: HeadWeights) -> dict[str, LinearWeights]:
    """The plain matrices around the layers, by their names in the graphs."""
    layers = {"project": embeddings.project, "dense": head.dense, "classifier": head.classifier}
    return {name: linear for name, linear in layers.items() if linear is not None}


def _end_arrays(embeddings: Embeddings, head: HeadWeights) -> list[np.ndarray]:
    """The arrays of the embeddings and the head, as stored, without the word table."""
    arrays = [embeddings.position, embeddings.norm, embeddings.row_hashes]
    arrays += [] if embeddings.types is None else [embeddings.types]
    plain = plain_layers(embeddings, head).values()
    return arrays + [array for linear in plain for array in (linear.weight, linear.bias)]


def word_format(embeddings: Embeddings) -> TableFormat:
    """The format of the word table."""
    return "codes" if isinstance(embeddings.word, QuantizedTable) else embeddings.word.precision


def _tables(embeddings: Embeddings) -> dict[str, Buffer]:
    """The memory of the embedding's tables and norm."""
    word = embeddings.word
    at = {"position": Buffer.of(embeddings.position)} | norm_buffers("norm", embeddings.norm)
    if embeddings.types is not None:
        at["type"] = Buffer.of(embeddings.types)
    if isinstance(word, QuantizedTable):
        return at | {"word": Buffer.of(word.codes), "codebook": Buffer.of(word.codebook)}
    return at | {"word": Buffer.of(word.values)}


def _align(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT
