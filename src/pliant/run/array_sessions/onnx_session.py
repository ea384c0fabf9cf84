"""A session on an ONNX model: feeds of any shape in, arrays out.

An image has fixed sizes. For a model with open dimensions, a new shape is bound to an executable form that
accepts it (run/graph/symbolic_forms.py), or else compiled; so is each new value of an input that shapes
depend on.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, final

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import Image, make_image
from pliant.compiler.executable.image_executable import image_executable
from pliant.compiler.passes.pack_texts import TextShape
from pliant.errors import MissingValueError
from pliant.ir.bitwidths import WeightFormat
from pliant.ir.dilation import Dilation
from pliant.ir.executable import Executable
from pliant.ir.graph import Graph, TensorType
from pliant.ir.port import Port
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.models.onnx.bind.onnx_blocks import host_names, require_one_graph
from pliant.models.onnx.onnx_file import OnnxModel
from pliant.plan.precision import PrecisionChoice
from pliant.profile.system_memory import machine_bytes
from pliant.run.arena import Arena
from pliant.run.array_sessions.array_session import ArraySession, array_shapes
from pliant.run.array_sessions.kept_images import KeptImages, is_bound
from pliant.run.batches.feed_batcher import BatchItem, FeedBatcher, RunFunctions
from pliant.run.batches.packed_texts import make_packed_texts
from pliant.run.batches.padding import Padding
from pliant.run.batches.parallel_runs import ParallelRuns
from pliant.run.batches.request_batcher import RequestBatcher
from pliant.run.batches.token_feed import IS_TOKEN
from pliant.run.graph.array_stage import AllTensors, Tensors
from pliant.run.graph.graph_runner import GraphRunner, one_stage_runner
from pliant.run.graph.lowering import Lowering
from pliant.run.graph.model_binder import ModelBinder
from pliant.run.graph.model_options import ModelOptions
from pliant.run.graph.open_graph import GraphOpener, check_memory, packed_bytes
from pliant.run.graph.schedule_graph import ScheduleReport
from pliant.run.graph.symbolic_forms import SizedStage, SymbolicForms
from pliant.run.host.block_stage import Types, nested_runners
from pliant.run.host.host_stage import copy_shared
from pliant.run.host.part_binder import PartBinder, PartSteps
from pliant.run.memory_use import MemoryUse
from pliant.run.packed_weights import SharedWeights
from pliant.run.session.feeds import FeedsLike, convert_feeds
from pliant.run.session.ports import Feeds, Shapes, describe_session, fix_dims, shapes_of, symbols, whole_dims
from pliant.settings import cache_folder

if TYPE_CHECKING:
    from pliant.run.session.call_profile import Profile


@final
class OnnxSession(ArraySession):
    """Runs a model on feeds. Threads may share the session; their runs are serialised.

    A model of fixed shapes is compiled at once unless `ahead` is off, another on its first new shape. Beyond
    `options.images` images, the least recently used one is evicted, those first that can be bound again
    without compiling. The first time that an evicted image is compiled again, a UserWarning reports it. All
    images share one copy of the weights and one arena, as large as the largest needs. `schedule` reports how
    the last graph was scheduled, unless by fixed rules. A forked child has its own workers. `graph` returns
    graphs for `target`, by default this CPU; only those for this CPU run.

    With buckets, the first answer of each is compared with that for the exact shape (run/batches/padding.py),
    whose image is not kept.
    """

    def __init__(
        self,
        model: OnnxModel,
        pool: ThreadPool,
        library: Library,
        options: ModelOptions,
        *,
        name: str = "model",
        ahead: bool = True,
        target: Target | None = None,
        dilation: Dilation = Dilation(),  # noqa: B008 - frozen
    ) -> None:
        dims = whole_dims(model.inputs, options.dims)
        inputs = [fix_dims(port, dims) for port in model.inputs]
        outputs = [fix_dims(port, dims) for port in model.outputs]
        super().__init__(name, inputs, outputs, pool, dilation)
        options.check_ports((*inputs, *outputs))
        self._model = model
        self._library = library
        self._options = options
        self._weights, self._arena = SharedWeights(model.drop_pages, model.constants.values()), Arena()
        self._forms = SymbolicForms()
        self._steps: list[PartSteps] = []
        self._binder = ModelBinder(model, options.buckets)
        self._has_parts: bool | None = len(self._tensors) < len(inputs) or None  # None: unknown yet
        self._lowering = Lowering(name, options, pool, library, model.drop_pages, self._weights.own, target)
        self.schedule: ScheduleReport | None = None
        self._latest: tuple[Shapes, GraphRunner] | None = None  # last image, if chosen by shapes
        self._padding = Padding(options.buckets, self._tensors, self.outputs)
        self._feed_batcher = FeedBatcher(options.buckets, self._padding, inputs, outputs, pool.n_threads)
        self._parallel = ParallelRuns(pool.n_threads, library)
        is_bounded = options.memory_bytes is not None
        self._request_batcher = RequestBatcher(self._tensors, self.outputs, pool.n_threads, is_bounded)
        n_sizes = prod(map(len, options.buckets.sizes.values()))
        most = max(options.images, n_sizes * (self._feed_batcher.n_images if n_sizes > 1 else 1))
        self._images = KeptImages(most, options.memory_bytes, model.source)
        if ahead and all(port.is_static for port in self.inputs):
            self._compile_ahead()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._images)} images, {self._pool.n_threads} threads"
        return describe_session(f"OnnxSession of {self._model.source}", self.inputs, self.outputs, state)

    @cached_property  # hashing a large file is slow, and few callers need it
    def identity(self) -> str:  # type: ignore[override]
        """Content hash of the model file and its external data, or of its bytes. Raises ModelError."""
        self._model.check_same()
        return self._model.identity(cache_folder())

    @property
    def weight_bytes(self) -> int:
        return sum({id(a): a.nbytes for one in self._runners() for a in one.weights.values()}.values())

    @property
    def memory(self) -> MemoryUse:
        """Memory predicted when images were made, and measured now. `weights` gives their bits."""
        with self._turns.lock:
            return self._memory_use(
                self._options.memory_bytes, self._arena, self._weights.given, self._parallel.memory
            )

    @property
    def weights(self) -> WeightFormat:
        """The format of matrices: "fp32" or a number of bits; "auto" until the first shapes decide."""
        return self._options.weights if self._lowering.weights is None else self._lowering.weights

    @property
    def compute(self) -> ComputeDtype:
        return self._options.compute

    @property
    def precision(self) -> PrecisionChoice | None:
        return self._options.precision

    def graph(self, feeds: FeedsLike) -> Graph:
        """The graph that would be compiled for these feeds, after all passes."""
        arrays = self._pad_feeds(feeds)
        with self._turns.lock:
            part = self._binder.bind(array_shapes(arrays), arrays)
            scheduled = self._lowering.schedule(require_one_graph(part, self._model.source))
            self.schedule = scheduled.report
            return scheduled.graph

    def image(self, feeds: FeedsLike) -> Image:
        """The kernel calls and memory places for feeds of these shapes."""
        return make_image(self.graph(feeds), Target(self._library.isa, self._pool.n_threads))

    def executable(self, feeds: FeedsLike) -> Executable:
        """The executable for feeds of these shapes; with formulas where it serves other sizes too."""
        shapes = array_shapes(self._pad_feeds(feeds))
        with self._turns.lock:
            stage = None if IS_TOKEN in shapes else self._forms.stage(shapes) or self._new_form(shapes)
            graph = (
                None if stage is None else self._forms.graph(shapes, self._open_dims, self._binder.bind_first)
            )
            if graph is not None and not graph.waiting:
                sizes = dict(zip(graph.family.names, graph.family.sizes(shapes) or (), strict=True))
                return image_executable(self._lowering.lower(graph.graph).image, sizes, with_digests=True)
        return image_executable(self.image(feeds), with_digests=True)

    def close(self) -> None:
        """Free all memory; a later run raises an error. The pool stays open."""
        with self._turns.lock:
            self._closed, self._latest = True, None
            self._images.clear()
            self._padding.clear()
            self._parallel.close()
            self._weights, self._arena = SharedWeights(), Arena()
            self._forms, self._steps = SymbolicForms(), []

    @property
    def most_beside(self) -> int:
        is_bounded = self._options.memory_bytes is not None  # each worker has an arena of its own
        return 1 if self._batcher is None or is_bounded else self._parallel.n_workers

    def divide_threads(self, n_workers: int | None) -> None:
        with self._turns.lock:
            self._parallel.divide(n_workers)

    def _runners(self) -> Sequence[GraphRunner]:
        every = chain.from_iterable(map(nested_runners, self._images.images))
        return tuple({id(runner): runner for runner in every}.values())

    def _runner(self, feeds: AllTensors) -> tuple[GraphRunner, AllTensors]:
        fed = self._padded(feeds)
        return self._image_of(fed), fed

    def _answer(self, feeds: AllTensors, out: Feeds | None, shapes: Shapes) -> Tensors:
        if self._latest is not None and self._latest[0] == shapes:
            return self._latest[1].walk(feeds, out)
        fit = self._padding.fit(shapes)
        if not fit.padded_dims:
            image = self._image_of(feeds)
            if self._has_parts:
                return copy_shared(image.walk(feeds, out), feeds, out)
            if not self._binder.by_value:
                self._latest = shapes, image
            return image.walk(feeds, out)
        # Bound methods are passed per call: stored, they would keep a dropped session alive.
        return self._padding.answer(fit, feeds, out, self._run_into, self._run_uncached)

    def _traced(self, feeds: AllTensors) -> "tuple[Tensors, Profile]":
        fit = self._padding.fit(shapes_of(self.inputs, feeds))
        profiles: list[Profile] = []

        def run(fed: AllTensors, held: Feeds) -> Tensors:
            made, profile = self._image_of(fed).traced(fed)
            profiles.append(profile)
            return made

        if fit.padded_dims:
            made = self._padding.answer(fit, feeds, None, run, self._run_uncached)
        else:
            made = run(feeds, {})
            made = copy_shared(made, feeds, None) if self._has_parts else made
        return made, profiles[0]

    def _answer_many(self, items: Sequence[BatchItem]) -> list[Tensors]:
        # Batches need more memory for activations: under a memory limit, weights would get fewer bits.
        if self._options.memory_bytes is not None or (items and self._is_in_parts(items[0].feeds)):
            return super()._answer_many(items)
        return self._feed_batcher.answer(items, self._run_functions)

    @property
    def _batcher(self) -> RequestBatcher | None:
        if self._has_parts is not False or self._options.buckets.sizes or self._binder.by_value:
            return None
        return self._request_batcher

    @property
    def _run_functions(self) -> RunFunctions:
        return RunFunctions(
            self._run_single, self._run_batch, self._run_parallel, self._begin_run, self._run_uncached
        )

    def _is_in_parts(self, feeds: AllTensors) -> bool:
        """Whether data-dependent shapes divide the model into several programs, which cannot be batched."""
        if self._has_parts is None:
            fed = self._padded(feeds)
            self._has_parts = bool(self._binder.bind(array_shapes(fed), fed).waiting)
        return self._has_parts

    def _run_single(self, feeds: AllTensors) -> Tensors:
        return self._answer(feeds, None, array_shapes(feeds))

    def _run_batch(self, feeds: AllTensors) -> Tensors:
        return self._image_of(feeds, is_batch=True).walk(feeds, None)

    def _run_parallel(self, batches: Sequence[Feeds]) -> list[Tensors]:
        results = self._parallel.run([(self._image_of(feeds), feeds) for feeds in batches])
        self._trim()  # more images may have run than are kept
        return results

    def _begin_run(self, feeds: Feeds) -> Callable[[], Tensors]:
        return self._parallel.begin(self._image_of(feeds), feeds)

    def _pad_feeds(self, feeds: FeedsLike) -> AllTensors:
        """The feeds, padded to the sizes that run."""
        return self._padded(convert_feeds(self.inputs, feeds))

    def _padded(self, arrays: AllTensors) -> AllTensors:
        return self._padding.pad(arrays, self._padding.fit(shapes_of(self.inputs, arrays)))

    def _run_exact(self, feeds: AllTensors, out: Feeds | None = None) -> Tensors:
        return self._image_of(feeds).walk(feeds, out)

    def _run_into(self, feeds: AllTensors, held: Feeds) -> Tensors:
        """As `_run_exact`, writing into arrays of an earlier run unless shapes depend on input values."""
        return self._run_exact(feeds, None if self._binder.by_value else held)

    def _run_uncached(self, feeds: AllTensors) -> Tensors:
        """The answer to unpadded feeds; their image is not kept unless it was kept before."""
        known = self._images.get(self._binder.key(array_shapes(feeds), feeds))
        results = (known or self._compile(array_shapes(feeds), feeds)).walk(feeds, None)
        if known is None:
            self._trim()
        return results

    def _image_of(self, feeds: AllTensors, is_batch: bool = False) -> GraphRunner:
        return self._image(array_shapes(feeds), feeds, is_batch)

    def _image(self, shapes: Shapes, feeds: AllTensors, is_batch: bool = False) -> GraphRunner:
        """The image for these shapes, compiled now if they are new.

        Raises BudgetError for a batch that does not fit beside the kept images.
        """
        self._latest = None
        key = self._binder.key(shapes, feeds)
        image = self._images.get(key)
        if image is None:
            image = self._compile(shapes, feeds, is_batch)
            # Compiling may have found more inputs that shapes depend on.
            key = self._binder.key(shapes, feeds)
            evicted = self._images.add(key, image, self._request_batcher.n_images)
            if evicted is not None:
                self._free(evicted)
        return image

    def _free(self, image: GraphRunner) -> None:
        """Free the memory of an evicted image."""
        is_largest = all(kept.arena_bytes < image.arena_bytes for kept in self._images.images)
        if is_bound(image) and not is_largest:
            self._parallel.drop(image)  # its weights belong to its form
        else:
            self._trim()

    def _trim(self) -> None:
        """Free the memory that no kept image needs."""
        self._arena.resize(self.arena_bytes)
        self._parallel.keep(self._runners())
        runners, forms = self._runners(), self._forms.forms
        self._weights.keep([*(kept.weights for kept in runners), *(form.weights for form in forms)])

    def _compile(self, shapes: Shapes, feeds: AllTensors, is_batch: bool = False) -> GraphRunner:
        self._latest = None
        self._model.check_same()
        own = {x: shape for x, shape in shapes.items() if x != IS_TOKEN}
        texts = TextShape(*shapes[IS_TOKEN]) if IS_TOKEN in shapes else None
        stage = None if texts else self._forms.stage(own) or self._new_form(own)
        if stage is not None and not stage.form.graph.waiting:
            check_memory(stage.numbers, 0, self._model.source)
            return one_stage_runner(stage, self._pool, sizes=stage.weight_sizes)
        if stage is not None:
            self._options.check_parts(host_names(stage.form.graph.waiting))
            return self._parts.bind_sized(stage, *self._in_parts(own), self._steps)
        part = self._binder.bind(own, feeds)
        self._has_parts = bool(part.waiting) or len(self._tensors) < len(self.inputs)
        if self._has_parts:
            self._options.check_parts(host_names(part.waiting))
            return self._parts.bind_fixed(part, *self._in_parts(own), self._steps)
        lowered = self._lowering.lower(part.graph, texts)
        self.schedule = lowered.scheduled.report
        check_memory(lowered.image, packed_bytes(lowered.image), self._model.source)
        if self._images.make_room(lowered, is_batch):
            self._trim()
        return self._opener.open(lowered, make_packed_texts(lowered.image, texts))

    def _in_parts(self, shapes: Shapes) -> tuple[Types, Mapping[str, Port]]:
        """Inputs and outputs of a model that data-dependent shapes divide into parts."""
        fed = [port for port in self.inputs if port.name not in self._binder.by_value]
        inputs = {p.name: None if p.element else TensorType(p.dtype, shapes[p.name]) for p in fed}
        return inputs, {port.name: port for port in self.outputs}

    @property
    def _opener(self) -> GraphOpener:
        lowering, weights, arena = self._lowering, self._weights, self._arena
        return GraphOpener(lowering, weights, arena, self._pool, self._library, self._model.source)

    @property
    def _parts(self) -> PartBinder:
        opener, options = self._opener, self._options
        return PartBinder(self._model, opener, options.images, machine_bytes(), options.is_open)

    def _new_form(self, shapes: Shapes) -> SizedStage | None:
        """A stage for these shapes on a form that serves other sizes too; None if none can be made."""
        if not self._options.is_open or self._binder.by_value or len(self._tensors) < len(self.inputs):
            return None
        if any(port.dims is None for port in self.inputs):
            return None
        stage = self._forms.open(shapes, self._open_dims, self._binder.bind_first, self._opener.open_form)
        if stage is not None:
            self._has_parts = bool(stage.form.graph.waiting)
        return stage

    @property
    def _open_dims(self) -> dict[str, tuple[str | None, ...]]:
        return {port.name: symbols(port) for port in self.inputs}

    def _compile_ahead(self) -> None:
        shapes = {port.name: tuple(d for d in port.dims or () if isinstance(d, int)) for port in self.inputs}
        with suppress(MissingValueError):  # known when it is fed
            self._image(shapes, {})
