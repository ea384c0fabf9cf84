"""Compile parts of layers once for all layers, and pack their weights once."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from pliant.cluster.member.part_codes import CodedConstants, coded_graph, piece_codes
from pliant.compiler.executable.call import PackedConstant, Target
from pliant.compiler.executable.encode_image import image_kernels
from pliant.compiler.executable.fragment import fragment_graph
from pliant.compiler.executable.image import make_image
from pliant.compiler.executable.kernel_addresses import load_kernels
from pliant.compiler.executable.stage import StageForm
from pliant.compiler.passes.pack_texts import BLOCKS, attend_by_text
from pliant.compiler.rules.rules import lower
from pliant.ir.graph import Graph
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.models.encoder.part_builder import EncoderPart
from pliant.system import trim_heap

WeightKey = tuple[int, str, str, int]
"""Layer, the part (empty if the name is valid in all parts), name, bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledPart:
    """A part for one number of rows: its graph after all passes, without weights, and its compiled form.

    Its matrices are float32, or in codes of `bits`; `coded` maps the constants of the codes.
    """

    part: EncoderPart
    bits: int | None
    graph: Graph
    form: StageForm
    kernels: Mapping[str, int]
    coded: CodedConstants

    @property
    def is_by_text(self) -> bool:
        """Whether it depends on the rows of each text: it has attention."""
        return BLOCKS in self.graph.inputs

    def keys(self, layer: int) -> dict[str, WeightKey]:
        """Return the key of each weight of `layer`, in the kernels' format, by name."""
        image = self.form.image
        found = {}
        for name, array in image.constants.items():
            piece, what = self.coded.get(name, (name, ""))
            found[name] = self._key(layer, piece, f"{piece}|{what}" if what else name, array.nbytes)
        for name, packed in image.packed.items():
            found[name] = self._key(layer, packed.source, name, packed.n_bytes)
        return found

    def _key(self, layer: int, source: str, name: str, n_bytes: int) -> WeightKey:
        """A piece's name identifies its numbers in the layer; other names are unique only in this part."""
        is_piece = source in self.part.pieces
        bits = "" if self.bits is None else f" in {self.bits} bits"
        return layer, "" if is_piece else _shape_key(self.part), name + bits, n_bytes


MOST_COMPILED = 256
"""Maximum number of compiled parts kept: those of about 64 lengths."""


@final
class CompiledParts:
    """One device's compiled parts and packed weights of one model, reused across partitions."""

    def __init__(self, source: EncoderSource, library: Library, pool: ThreadPool) -> None:
        self.source = source
        self._library, self._pool = library, pool
        self.isa, self._target = library.isa, Target(library.isa, pool.n_threads)
        self._compiled: dict[str, CompiledPart] = {}
        self._weights: dict[WeightKey, np.ndarray] = {}
        self.load_s = 0.0
        """Seconds spent on reading and packing weights so far, without compiling."""

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All weights held, in the kernels' format."""
        return tuple(self._weights.values())  # a copy: another thread may load meanwhile

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights held, in the kernels' format."""
        return sum(array.nbytes for array in self.arrays)

    def compiled(self, part: EncoderPart, bits: int | None = None) -> CompiledPart:
        """Return the compiled part, from the cache if possible: in codes of `bits`, or in float32."""
        key = f"{_shape_key(part)} {bits}"
        found = self._compiled.pop(key, None) or self._compile(part, bits)
        self._compiled[key] = found  # most recent last
        if len(self._compiled) > MOST_COMPILED:
            del self._compiled[next(iter(self._compiled))]
        return found

    def weights(self, compiled: CompiledPart, layer: int) -> dict[str, np.ndarray]:
        """Return every weight of the part in `layer` by name; missing ones are read and packed."""
        keys = compiled.keys(layer)
        missing = [name for name, key in keys.items() if key not in self._weights]
        if missing:
            start_s = time.perf_counter()
            self._load(compiled, layer, {name: keys[name] for name in missing})
            self.load_s += time.perf_counter() - start_s
        return {name: self._weights[key] for name, key in keys.items()}

    def keep(self, used: Collection[WeightKey]) -> None:
        """Free all weights except these."""
        n_before = len(self._weights)
        self._weights = {key: array for key, array in self._weights.items() if key in used}
        if len(self._weights) < n_before:
            trim_heap()

    def _compile(self, part: EncoderPart, bits: int | None) -> CompiledPart:
        blanks = {name: _blank(piece.shape) for name, piece in part.pieces.items()}
        constants = {**part.constants, **blanks}
        graph = fragment_graph(Graph(part.nodes, part.inputs, part.outputs, part.types, constants, part.name))
        graph = attend_by_text(graph)
        graph, coded = (graph, {}) if bits is None else coded_graph(graph, part.pieces, bits)
        form = StageForm(make_image(graph, self._target))
        self._pool.reserve(form.image.scratch_bytes)
        return CompiledPart(
            part, bits, graph, form, load_kernels(image_kernels(form.image), self._library), coded
        )

    def _load(self, compiled: CompiledPart, layer: int, wanted: Mapping[str, WeightKey]) -> None:
        """Read the layer's pieces, and store the wanted weights."""
        packed, prefix = compiled.form.image.packed, f"layers.{layer}."
        sources = {packed[name].source if name in packed else name for name in wanted}
        constants = dict(compiled.graph.constants)
        for name in sources & compiled.part.pieces.keys():
            constants[name] = compiled.part.pieces[name].read(self.source.tensor, prefix)
        if compiled.bits is not None:
            matrices = {
                piece: piece_codes(compiled.part.pieces[piece], self.source.codes, prefix, compiled.bits)
                for piece in sorted({piece for piece, _ in compiled.coded.values()})
            }
            constants |= {x: getattr(matrices[p], what) for x, (p, what) in compiled.coded.items()}
        fills: dict[str, PackedConstant] = {}
        if not packed.keys().isdisjoint(wanted):
            graph = replace(compiled.graph, constants=constants)
            fills = {name: p for one in lower(graph, self._target) for name, p in one.packed.items()}
        for name, key in wanted.items():
            if name in fills:
                self._weights[key] = aligned_bytes(fills[name].n_bytes)
                fills[name].fill(self._weights[key])
            else:
                self._weights[key] = _copied(constants[name])


def _blank(shape: tuple[int, ...]) -> np.ndarray:
    """A placeholder for a weight: compilation needs its shape only, and must keep no layer in memory."""
    return np.broadcast_to(np.zeros((), np.float32), shape)


def _copied(array: np.ndarray) -> np.ndarray:
    """Return a copy: a mapped array would keep a whole file in memory."""
    copy = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _shape_key(part: EncoderPart) -> str:
    """Return a key that is equal for parts with the same calls on the same numbers of a layer."""
    types = ", ".join(f"{x}: {part.types[x]}" for x in (*part.inputs, *part.outputs))
    return f"{part.name} ({types}) {sorted(part.pieces)}"
