"""One device's share of a partition: its bound stages and its tensors."""

from collections.abc import Callable, Collection, Sequence
from threading import Lock
from typing import final
from weakref import WeakSet

import numpy as np

from pliant.cluster.member.buffers import BufferCopy, Buffers
from pliant.cluster.member.compiled_parts import CompiledPart, CompiledParts, WeightKey
from pliant.cluster.member.end_stages import CompiledEnd, EndStages
from pliant.cluster.member.run_executor import LoadedWeights
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import image_kernels
from pliant.compiler.executable.fragment import fragment_image
from pliant.compiler.executable.kernel_addresses import load_kernels
from pliant.compiler.executable.stage import BoundStage as BoundStage
from pliant.compiler.executable.stage import StageForm
from pliant.compiler.passes.pack_texts import BLOCKS
from pliant.errors import InputError
from pliant.ir.executable import ARENA
from pliant.ir.graph import Graph
from pliant.ir.partition import Partition
from pliant.ir.program import Compute, Exchange
from pliant.kernels.attention.attention_texts import BLOCK_WORDS, text_blocks
from pliant.kernels.runtime.buffer import Buffer
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_architecture import PreparedInput
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.models.spec import picked_layers
from pliant.plan.split.split_program import HEAD, INPUT
from pliant.plan.split.stage_graphs import graph_part, inputs, outputs
from pliant.plan.split.stages import DeviceStage, stages
from pliant.run.arena import Arena
from pliant.run.memory_use import MemoryPart, measure_part
from pliant.run.packed_weights import SharedWeights
from pliant.system import trim_heap

_MOST_ENDS = 256
"""Maximum number of compiled ends kept, two per length."""


@final
class ModelShards:
    """One device's state of a model across partitions: kernels, packed weights, input and head.

    The pool belongs to the caller. Not thread-safe, but a shard may be prepared while another one runs.
    """

    def __init__(self, device: str, source: EncoderSource, library: Library, pool: ThreadPool) -> None:
        self.device, self.source = device, source
        self._library, self._pool = library, pool
        self._forms = CompiledParts(source, library, pool)
        self._ends: dict[tuple[str, int], CompiledEnd] = {}
        self._made: WeakSet[Shard] = WeakSet()
        self._made_lock = Lock()  # one thread reads memory while another prepares or frees

    @property
    def weight_bytes(self) -> int:
        """Bytes of the layers' weights held, in the kernels' format."""
        return self._forms.weight_bytes

    @property
    def activation_bytes(self) -> int:
        """Bytes of the activations of the layers, of all shards."""
        return sum(shard.activation_bytes for shard in self._shards())

    @property
    def end_bytes(self) -> int:
        """Bytes of the weights held for the input and the head; all lengths share them."""
        return sum(array.nbytes for array in self._end_weights())

    def memory(self) -> tuple[MemoryPart, ...]:
        """Return this device's memory for the model: as predicted when packed, and as measured now."""
        made, end_weights = self._shards(), self._end_weights()
        own = [array for one in made for array in (one.arena, *one.buffers)]
        used = sum(one.arena_bytes for one in made)
        return (
            measure_part("weights", self.weight_bytes, self._forms.arrays),
            measure_part("input and head", sum(x.nbytes for x in end_weights), end_weights),
            measure_part("activations", used, own),
        )

    def prepare(self, partition: Partition, first: int = 0, spec: EncoderSpec | None = None) -> "Shard":
        """Return this device's stages of layers `first` on; compiles, reads and packs what is missing.

        The stages are those of the model, or of the submodel that `spec` describes. Raises InputError if
        the partition does not fit the model or does not contain this device.
        """
        return self._prepare(partition, first, spec, is_alone=False)

    def _prepare(
        self, partition: Partition, first: int, spec: EncoderSpec | None, *, is_alone: bool
    ) -> "Shard":
        partition.share(self.device)
        end = self._end if partition.primary == self.device else None
        spec = spec or self.source.spec
        shard = Shard(self.device, spec, partition, first, self._forms, self._pool, end, is_alone=is_alone)
        with self._made_lock:
            self._made.add(shard)
        return shard

    def replace(self, partition: Partition, spec: EncoderSpec | None = None) -> "Shard":
        """Like `prepare`, but frees first, if memory lacks for both. Earlier shards must not run any more.

        Weights that the new shard does not read are freed before any are read or packed.
        """
        self._release(())
        return self._prepare(partition, 0, spec, is_alone=True)

    def keep(self, *used: "Shard") -> None:
        """Free the weights that none of `used` reads; all other shards can no longer run."""
        self._release(used)
        if not used:
            self._ends.clear()
        self._forms.keep({key for shard in used for key in shard.weight_keys})

    def _release(self, but: Collection["Shard"]) -> None:
        for shard in set(self._shards()) - set(but):
            shard.release()
            with self._made_lock:
                self._made.discard(shard)

    def _shards(self) -> list["Shard"]:
        with self._made_lock:
            return list(self._made)

    def _end(self, kernel: str, rows: int) -> CompiledEnd:
        key = kernel, rows
        end = self._ends.pop(key, None)
        if end is None:
            graph: Graph = self.source.input(rows) if kernel == INPUT else self.source.head(rows)
            image = fragment_image(graph, Target(self._library.isa, self._pool.n_threads))
            self._pool.reserve(image.scratch_bytes)
            packed = SharedWeights().pack(image, {})
            weights = {name: self._find_equal(name, array) for name, array in packed.items()}
            end = CompiledEnd(StageForm(image), load_kernels(image_kernels(image), self._library), weights)
        self._ends[key] = end  # most recent last
        if len(self._ends) > _MOST_ENDS:
            del self._ends[next(iter(self._ends))]
        return end

    def _find_equal(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return the array of that name and content that an end for another length has, or `array`."""
        known = (end.weights.get(name) for end in reversed(self._ends.values()))
        return next((one for one in known if one is not None and np.array_equal(one, array)), array)

    def _end_weights(self) -> list[np.ndarray]:
        every = {id(array): array for end in list(self._ends.values()) for array in end.weights.values()}
        return list(every.values())


@final
class Shard:
    """The stages of one device under one partition, and the arrays between them; one run at a time."""

    def __init__(
        self,
        device: str,
        spec: EncoderSpec,
        partition: Partition,
        first: int,
        forms: CompiledParts,
        pool: ThreadPool,
        end: Callable[[str, int], CompiledEnd] | None,
        *,
        is_alone: bool = False,
    ) -> None:
        self.device, self.partition = device, partition
        self.model = forms.source.whole.identity
        self._pool, self._n_layers = pool, spec.n_layers
        mine = [[s for s in stages(spec, partition, k) if s.device == device] for k in range(2)]
        self._buffers = Buffers([*mine[0], *mine[1]], partition.tokens, spec.hidden)
        # A layer of a submodel uses the weights of one of the model's layers.
        self._picked = picked_layers(forms.source.spec.n_layers, spec.n_layers)
        bits_of = partition.bits or (None,) * spec.n_layers
        compiled = {
            (s.kernel, bits): forms.compiled(graph_part(spec, partition, s), bits)
            for s in mine[0]
            for bits in set(bits_of[first:])
        }
        self._arena = Arena()
        inside = max((one.form.image.arena_bytes for one in compiled.values()), default=0)
        self._arena.resize(inside)
        joined = {INPUT: self.state(0), HEAD: self.state(spec.n_layers)}
        self._ends = None if end is None else EndStages(end, pool, joined, self._arena.memory)
        self._isa, self._lengths = forms.isa, tuple[int, ...]()
        self._blocks = np.zeros((partition.tokens, BLOCK_WORDS), np.int64)
        self.activation_bytes = inside + self._buffers.n_bytes + self._blocks.nbytes
        """Bytes of the tensors of its layers, without those of the input and the head."""
        self._weights: dict[WeightKey, np.ndarray] = {}
        self._stages: dict[tuple[str, int], tuple[BoundStage, int | None, tuple[BufferCopy, ...]]] = {}
        if is_alone:
            layers = range(first, spec.n_layers)
            forms.keep(
                {
                    k
                    for i in layers
                    for s in mine[i % 2]
                    for k in compiled[s.kernel, bits_of[i]].keys(self._picked[i]).values()
                }
            )
        before, before_s = forms.weight_bytes, forms.load_s
        for layer in range(first, spec.n_layers):
            for stage in mine[layer % 2]:
                bound = self._bind(stage, compiled[stage.kernel, bits_of[layer]], layer, forms)
                rows = None if compiled[stage.kernel, bits_of[layer]].is_by_text else stage.rows
                self._stages[stage.kernel, layer] = bound, rows, self._buffers.copies_before(stage)
            forms.source.release()  # a device short of memory holds one layer's source at a time
        self.loaded = LoadedWeights(forms.weight_bytes - before, forms.load_s - before_s)
        if self.loaded.n_bytes:
            trim_heap()  # reading and packing needed several times the memory that is kept

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that its stages read, in the kernels' format."""
        return sum(array.nbytes for array in self._weights.values())

    @property
    def weight_keys(self) -> frozenset[WeightKey]:
        """The keys of these weights among all weights of the device."""
        return frozenset(self._weights)

    @property
    def arena_bytes(self) -> int:
        """Bytes of all tensors that live during a run: between stages and inside them."""
        return self._arena.n_bytes + sum(array.nbytes for array in self.buffers)

    @property
    def arena(self) -> np.ndarray:
        """The memory of tensors inside stages, for memory accounting."""
        return self._arena.memory

    @property
    def buffers(self) -> tuple[np.ndarray, ...]:
        """The memory of tensors between stages, and of feeds and answer, for memory accounting."""
        ends = () if self._ends is None else self._ends.buffers
        return (*self._buffers.arrays, self._blocks, *ends)

    def release(self) -> None:
        """Free the weights even if this object is still referenced; a running stage keeps its own."""
        self._stages = {}
        self._weights = {}
        self._ends = None

    def begin(self, inputs: Sequence[PreparedInput]) -> None:
        """On the primary: set the inputs of the next run, one after another in its rows.

        Compiles the input and the head for new lengths. Raises InputError for invalid feeds.
        """
        self._primary_ends.begin(inputs)

    def state(self, layer: int) -> np.ndarray:
        """The input of `layer`, float32 [tokens, hidden], as a writable view.

        Valid until layer `layer + 1` has run.
        """
        return self._buffers.x(layer)

    def answers(self) -> tuple[np.ndarray, ...]:
        """On the primary: return the head's output of the last run for each input. Raises InputError before
        they exist.
        """
        return self._primary_ends.answers()

    def compute(self, step: int, work: Compute, lengths: tuple[int, ...] = ()) -> None:
        """Run one stage on the current arrays, of texts of `lengths` rows, by default one of all rows.

        Raises InputError for a stage that is not held here.
        """
        if work.kernel in (INPUT, HEAD) and self._ends is not None:
            self._ends.compute(work.kernel)
            return
        found = self._stages.get((work.kernel, work.layer or 0))
        if found is None:
            raise InputError(
                f"step {step} asks {self.device} for '{work}', which its partition does not hold."
            )
        stage, rows, copies = found
        for copy in copies:
            copy.target[...] = copy.source
        stage.walk(self._texts(lengths) if rows is None else (rows,), self._pool)

    def _texts(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Have each text attend to itself; return the rows of each."""
        lengths = lengths or (self.partition.tokens,)
        if lengths != self._lengths:
            self._lengths = ()  # after an interrupt the blocks match no lengths
            blocks = text_blocks(lengths, self._isa)
            self._blocks[: len(blocks)] = blocks
            self._lengths = lengths
        return lengths

    @property
    def _primary_ends(self) -> EndStages:
        if self._ends is None:
            raise InputError(
                f"{self.device} has no input and head: {self.partition.primary} leads this partition."
            )
        return self._ends

    def view(self, work: Exchange) -> np.ndarray:
        """The exchanged tensor, float32 [rows, columns], as a view: a sender's output, a receiver's input."""
        return self._buffers.outgoing(work) if work.src == self.device else self._buffers.incoming(work)

    def _bind(
        self, stage: DeviceStage, compiled: CompiledPart, layer: int, forms: CompiledParts
    ) -> BoundStage:
        keys, weights = compiled.keys(self._picked[layer]), forms.weights(compiled, self._picked[layer])
        self._weights |= {keys[name]: array for name, array in weights.items()}
        at = {name: Buffer.of(array) for name, array in weights.items()}
        at |= {ARENA: self._arena.buffer, BLOCKS: Buffer.of(self._blocks)}
        # Layers of the same parity share the arrays of their stages.
        for port in (*inputs(stage), *outputs(stage)):
            at[port.name] = Buffer.of(self._buffers.port(stage, port))
        return BoundStage(compiled.form, compiled.kernels, at)
