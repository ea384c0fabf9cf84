"""A session on an ONNX model: feeds of any shape in, arrays out.

An image has fixed sizes. For a model with open dimensions, a new shape is bound to an executable form that
accepts it (run/graph/symbolic_forms.py), or else compiled; so is each new value of an input that shapes
depend on.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, final

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import Image, make_image
from pliant.compiler.executable.image_executable import image_executable
from pliant.errors import BudgetError, InputError, MissingValueError
from pliant.ir.bitwidths import BYTE_BITS, PLANES, WeightFormat
from pliant.ir.dilation import Dilation
from pliant.ir.endpoint import Request
from pliant.ir.executable import Executable
from pliant.ir.graph import Graph
from pliant.ir.times.timing import Timing
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.models.onnx.onnx_file import OnnxModel
from pliant.plan.precision import PrecisionChoice
from pliant.run.array_sessions.array_memory import SessionArrays
from pliant.run.array_sessions.array_plan import ArrayPlan
from pliant.run.array_sessions.array_session import ArraySession, array_shapes
from pliant.run.array_sessions.compile_times import CompileTimes
from pliant.run.array_sessions.input_sizes import shapes_of_length
from pliant.run.array_sessions.kept_images import KeptImages, is_bound
from pliant.run.array_sessions.onnx_compiler import OnnxCompiler
from pliant.run.array_sessions.shape_limit import ShapeLimit
from pliant.run.batches.buckets import BucketFit
from pliant.run.batches.feed_batcher import BatchItem
from pliant.run.batches.request_batcher import RequestBatcher
from pliant.run.graph.array_stage import AllTensors, Tensors
from pliant.run.graph.example_moments import convert_examples
from pliant.run.graph.graph_runner import GraphRunner
from pliant.run.graph.lowering import LoweredGraph
from pliant.run.graph.model_options import ModelOptions
from pliant.run.graph.schedule_graph import ScheduleReport
from pliant.run.host.block_stage import nested_runners
from pliant.run.host.host_stage import copy_shared
from pliant.run.session.feeds import FeedsLike, convert_feeds
from pliant.run.session.ports import Feeds, Shapes, describe_session, fix_dims, shapes_of, whole_dims
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
        options.check_ports((*inputs, *outputs))
        super().__init__(
            name,
            inputs,
            outputs,
            pool,
            library,
            dilation,
            buckets=options.buckets,
            memory_bytes=options.memory_bytes,
        )
        self._model = model
        self._library = library
        self._options = replace(options, examples=())  # the compiler frees them
        examples = convert_examples(self.inputs, options.examples)
        self._has_examples = bool(examples)
        self._compiler = OnnxCompiler(
            model, self.inputs, self.outputs, self._options, examples, pool, library, name, target
        )
        self._latest: tuple[Shapes, GraphRunner] | None = None  # last image, if chosen by shapes
        n_sizes = prod(map(len, options.buckets.sizes.values()))
        most = max(options.images, n_sizes * (self._feed_batcher.n_images if n_sizes > 1 else 1))
        self._images = KeptImages(most, options.memory_bytes, model.source)
        self._compile_times, self._limit = CompileTimes(), ShapeLimit(self._tensors)
        self._is_limit_known = False
        self._identity: str | None = None
        if ahead and all(port.is_static for port in self.inputs):
            self._compile_ahead()
        elif ahead:
            self._find_limit()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._images)} images, {self._pool.n_threads} threads"
        return describe_session(f"OnnxSession of {self._model.source}", self.inputs, self.outputs, state)

    @property
    def identity(self) -> str:  # type: ignore[override]
        """Content hash of the model file and its external data, or of its bytes. Raises ModelError."""
        if self._identity is None:  # hashing a large file is slow, and few callers need it
            self._model.check_same()
            self._identity = self._model.identity(cache_folder())
        return self._identity

    @property
    def weight_bytes(self) -> int:
        return sum({id(a): a.nbytes for one in self._runners() for a in one.weights.values()}.values())

    @property
    def weights(self) -> WeightFormat:
        """The format of matrices: "fp32" or a number of bits; "auto" until the first shapes decide."""
        return self._compiler.lowering.weights or self._options.weights

    @property
    def schedule(self) -> ScheduleReport | None:
        """How the last graph was scheduled; None before any."""
        return self._compiler.schedule

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
            return self._compiler.graph(array_shapes(arrays), arrays)

    def image(self, feeds: FeedsLike) -> Image:
        """The kernel calls and memory places for feeds of these shapes."""
        return make_image(self.graph(feeds), Target(self._library.isa, self._pool.n_threads))

    def executable(self, feeds: FeedsLike) -> Executable:
        """The executable for feeds of these shapes; with formulas where it serves other sizes too."""
        shapes = array_shapes(self._pad_feeds(feeds))
        with self._turns.lock:
            found = self._compiler.symbolic_image(shapes)
        if found is not None:
            return image_executable(*found, with_digests=True)
        return image_executable(self.image(feeds), with_digests=True)

    def close(self) -> None:
        """Free all memory; a later run raises an error. The pool stays open."""
        with self._turns.lock:
            self._closed, self._latest = True, None
            self._images.clear()
            self._padding.clear()
            self._parallel.close()
            self._compiler.clear()

    def most_length(self, like: Request | None = None) -> int | None:
        """The longest sample that there is memory for, found when the weights are decided; less if a shorter
        input was refused. Without `like`, None for a model with several open dimensions.
        """
        return self._limit.most_length(None if like is None else array_shapes(like.tensors))

    def compiling(self, request: Request) -> Timing | None:
        shapes, latest = array_shapes(request.tensors), self._latest
        if latest is not None and latest[0] == shapes:
            return None
        try:
            fit = self._padding.fit(shapes)
        except InputError:  # a run says why
            return None
        own = self._run_shapes(fit, shapes)
        if self._compiler.binder.key(own, request.tensors) in self._images or self._compiler.serves(own):
            return None
        is_compared = bool(fit.padded_dims) and self._padding.cuts(fit) is None
        return self._compile_times.expected.times(2.0 if is_compared else 1.0)

    def _plan(self, runners: Sequence[GraphRunner]) -> ArrayPlan:
        made, weights = super()._plan(runners), self._compiler.lowering.weights
        if not self._has_examples or weights not in ("fp32", BYTE_BITS):
            return made
        kept = f"{BYTE_BITS} bits" if weights == BYTE_BITS else weights
        return replace(
            made,
            remarks=(
                f"examples: not used, as weights='auto' became {kept}; only codes of 1 to {PLANES} bits are "
                "chosen for examples",
            ),
        )

    def _runners(self) -> Sequence[GraphRunner]:
        every = chain.from_iterable(map(nested_runners, self._images.images))
        return tuple({id(runner): runner for runner in every}.values())

    @property
    def _arrays(self) -> SessionArrays:
        own = self._compiler
        return SessionArrays(self._runners(), own.arena, self._parallel.memory, own.weights.given)

    def _runner(self, feeds: AllTensors) -> tuple[GraphRunner, AllTensors]:
        fed = self._padded(feeds)
        return self._image_of(fed), fed

    def _answer(self, feeds: AllTensors, out: Feeds | None, shapes: Shapes) -> Tensors:
        if self._latest is not None and self._latest[0] == shapes:
            return self._latest[1].walk(feeds, out)
        try:
            return self._answer_by_image(feeds, out, shapes)
        except BudgetError:
            if not self._compiler.binder.by_value:  # else other values may need less
                self._limit.refuse(shapes)
            raise

    def _answer_by_image(self, feeds: AllTensors, out: Feeds | None, shapes: Shapes) -> Tensors:
        fit = self._padding.fit(shapes)
        if not fit.padded_dims:
            image = self._image_of(feeds)
            if self._compiler.has_parts:
                return copy_shared(image.walk(feeds, out), feeds, out)
            if not self._compiler.binder.by_value:
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
            made = copy_shared(made, feeds, None) if self._compiler.has_parts else made
        return made, profiles[0]

    def _answer_many(self, items: Sequence[BatchItem]) -> list[Tensors]:
        if items and self._memory_bytes is None and self._is_in_parts(items[0].feeds):
            return [self._answer(item.feeds, None, item.shapes) for item in items]
        return super()._answer_many(items)

    @property
    def _batcher(self) -> RequestBatcher | None:
        is_divided, by_value = self._compiler.has_parts is not False, self._compiler.binder.by_value
        return None if is_divided or self._options.buckets.sizes or by_value else self._request_batcher

    def _is_in_parts(self, feeds: AllTensors) -> bool:
        """Whether data-dependent shapes divide the model into several programs, which cannot be batched."""
        if self._compiler.has_parts is None:
            fed = self._padded(feeds)
            self._compiler.has_parts = bool(self._compiler.binder.bind(array_shapes(fed), fed).waiting)
        return self._compiler.has_parts

    def _run_parallel(self, batches: Sequence[Feeds]) -> list[Tensors]:
        results = super()._run_parallel(batches)
        self._trim()  # more images may have run than are kept
        return results

    def _pad_feeds(self, feeds: FeedsLike) -> AllTensors:
        """The feeds, padded to the sizes that run."""
        return self._padded(convert_feeds(self.inputs, feeds))

    def _padded(self, arrays: AllTensors) -> AllTensors:
        return self._padding.pad(arrays, self._padding.fit(shapes_of(self.inputs, arrays)))

    def _run_exact(self, feeds: AllTensors, out: Feeds | None = None) -> Tensors:
        return self._image_of(feeds).walk(feeds, out)

    def _run_into(self, feeds: AllTensors, held: Feeds) -> Tensors:
        """As `_run_exact`, writing into arrays of an earlier run unless shapes depend on input values."""
        return self._run_exact(feeds, None if self._compiler.binder.by_value else held)

    def _run_uncached(self, feeds: AllTensors) -> Tensors:
        """The answer to unpadded feeds; their image is not kept unless it was kept before."""
        known = self._images.get(self._compiler.binder.key(array_shapes(feeds), feeds))
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
        key = self._compiler.binder.key(shapes, feeds)
        image = self._images.get(key)
        if image is None:
            image = self._compile(shapes, feeds, is_batch)
            # Compiling may have found more inputs that shapes depend on.
            key = self._compiler.binder.key(shapes, feeds)
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
        self._compiler.arena.resize(self.arena_bytes)
        self._parallel.keep(self._runners())
        runners, forms = self._runners(), self._compiler.forms.forms
        self._compiler.weights.keep([*(kept.weights for kept in runners), *(form.weights for form in forms)])

    def _compile(self, shapes: Shapes, feeds: AllTensors, is_batch: bool = False) -> GraphRunner:
        """A new image, whose time is that of later ones unless it is one size of a form."""

        def make_room(lowered: LoweredGraph) -> None:
            if self._images.make_room(lowered, is_batch):
                self._trim()

        self._latest = None
        is_bound, start_s = self._compiler.serves(shapes), self._clock()
        image = self._compiler.compile(shapes, feeds, make_room)
        if not is_bound:
            self._compile_times.observe(self._clock() - start_s)
        self._find_limit()
        self._thread.loaded_s += self._clock() - start_s
        return image

    def _find_limit(self) -> None:
        """Find the longest sample that there is memory for, unless schedules would be measured for it."""
        options, weights = self._options, self._compiler.lowering.weights
        if options.memory_bytes is None or options.schedule != "static" or self._is_limit_known:
            return
        if weights is not None:  # else the first shape decides
            self._is_limit_known = True
            self._limit.search(partial(shapes_of_length, self.inputs), self._fits, self.max_length)

    def _fits(self, shapes: Shapes) -> bool | None:
        try:
            return self._compiler.fits(self._run_shapes(self._padding.fit(shapes), shapes))
        except InputError:  # no bucket is as large
            return None

    def _run_shapes(self, fit: BucketFit, shapes: Shapes) -> Shapes:
        return {port.name: fit.shape(port, shapes[port.name]) for port in self._tensors}

    def _compile_ahead(self) -> None:
        shapes = {port.name: tuple(d for d in port.dims or () if isinstance(d, int)) for port in self.inputs}
        with suppress(MissingValueError):  # known when it is fed
            self._image(shapes, {})
