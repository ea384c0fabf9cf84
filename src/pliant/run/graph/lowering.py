"""Lower graphs of one model within a memory limit, with fewer bits where that is allowed and needed."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import Image, make_image
from pliant.compiler.passes.byte_weights import byte_weights
from pliant.compiler.passes.code_weights import code_weights
from pliant.compiler.passes.pack_texts import TextShape, pack_texts
from pliant.compiler.passes.pair_weights import pair_weights
from pliant.compiler.passes.round_convolutions import round_convolutions
from pliant.compiler.rewrite.coder import CachingCoder
from pliant.errors import BudgetError, GraphError
from pliant.ir.bitwidths import BYTE_BITS, PLANES, WeightFormat
from pliant.ir.graph import Graph
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.run.graph.example_moments import ExampleMoments
from pliant.run.graph.model_options import ModelOptions
from pliant.run.graph.schedule_graph import GraphScheduler, ScheduledGraph
from pliant.run.packed_weights import weight_sizes
from pliant.run.weight_sizes import GivenArrays, WeightSizes


@dataclass(frozen=True, slots=True)
class LoweredGraph:
    """A graph with its schedule, its image, and the bytes of its weights."""

    scheduled: ScheduledGraph
    image: Image
    sizes: WeightSizes

    @property
    def n_bytes(self) -> int:
        """The bytes that a session on this image alone adds to its process."""
        return self.sizes.n_bytes + self.image.arena_bytes


@final
class Lowering:
    """Plans and lowers graphs in the weights of `options`; "auto" is decided by the first graph.

    "auto" becomes "fp32" if that fits into `options.memory_bytes`, else the largest number of bits that fits.
    All later graphs have the same weights, since answers must not depend on which shape came first. `own` are
    the model's arrays. `target` is the CPU to lower for, by default that of `library` and `pool`. Weights
    are coded for `moments`, if given; those of the matrices of the first graph are freed with it.
    """

    def __init__(
        self,
        name: str,
        options: ModelOptions,
        pool: ThreadPool,
        library: Library,
        drop_pages: Callable[[], None],
        own: GivenArrays,
        target: Target | None = None,
        moments: ExampleMoments | None = None,
    ) -> None:
        self._moments = moments
        self._name, self._options, self._drop_pages = name, options, drop_pages
        self._pool, self._library, self._own = pool, library, own
        self._target = target or Target(library.isa, pool.n_threads)
        self._schedulers: dict[WeightFormat, GraphScheduler] = {}
        self.weights: WeightFormat | None = None if options.weights == "auto" else options.weights

    def schedule(self, bound: Graph) -> ScheduledGraph:
        """`bound` after all passes. Raises BudgetError if no allowed weight format fits."""
        if self.weights is None:
            return self.lower(bound).scheduled
        try:
            return self._scheduler(self.weights).schedule(bound, self._options.without)
        finally:
            self._free_moments()

    def lower(self, bound: Graph, texts: TextShape | None = None) -> LoweredGraph:
        """The image of `bound`, within the memory limit. Raises BudgetError naming the least memory.

        The padding of `texts` is not computed where that is possible.
        """
        try:
            return self._lower(bound, texts)
        finally:
            self._free_moments()

    def clear(self) -> None:
        """Free the examples; no graph is lowered any more."""
        if self._moments is not None:
            self._moments.clear()

    def _lower(self, bound: Graph, texts: TextShape | None) -> LoweredGraph:
        most = self._options.memory_bytes
        if self.weights is None:
            try:
                self.weights, lowered = self._chosen(bound, most)
            finally:  # the forms that were tried would stay in memory
                self._schedulers = {w: s for w, s in self._schedulers.items() if w == self.weights}
            if texts is None:
                return lowered
        lowered = self._lowered(bound, self.weights, texts)
        if most is not None and lowered.n_bytes > most:
            raise self._too_little(lowered, self.weights)
        return lowered

    def _chosen(self, bound: Graph, most: int | None) -> tuple[WeightFormat, LoweredGraph]:
        """The weight format of most bits that fits, and its image. Raises BudgetError."""
        compute = self._options.compute
        exact: WeightFormat = BYTE_BITS if compute == "int8" else "fp32"
        lowered = self._lowered(bound, exact)
        if most is None or lowered.n_bytes <= most:
            return exact, lowered
        least = lowered, exact
        if compute == "fp32":
            with suppress(GraphError):  # there is no matrix, or all of them are integers with scales already
                in_bytes = self._lowered(bound, BYTE_BITS)
                if in_bytes.n_bytes <= most:
                    return BYTE_BITS, in_bytes
                least = min(least, (in_bytes, BYTE_BITS), key=lambda form: form[0].n_bytes)
        try:
            coded = self._lowered(bound, PLANES)
        except GraphError:  # there is no matrix to code
            raise self._too_little(*least) from None
        # Removing a plane saves its bytes and a few of the codebooks, so at most one guess is too high.
        planes = max(0, coded.n_bytes - most) // _plane_bytes(coded.scheduled.graph)
        bits = max(1, PLANES - planes)
        while True:
            found = coded if bits == PLANES else self._lowered(bound, bits)
            if found.n_bytes <= most or bits == 1:
                break
            bits -= 1
        if found.n_bytes > most:
            raise self._too_little(found, bits)
        return bits, found

    def _lowered(self, bound: Graph, weights: WeightFormat, texts: TextShape | None = None) -> LoweredGraph:
        scheduled = self._scheduler(weights).schedule(bound, self._options.without)
        if texts is not None:
            scheduled = replace(scheduled, graph=pack_texts(scheduled.graph, texts, self._target.isa))
        image = make_image(scheduled.graph, self._target)
        return LoweredGraph(scheduled, image, weight_sizes(image, scheduled.graph.constants, self._own))

    def _scheduler(self, weights: WeightFormat) -> GraphScheduler:
        """The planner for this weight format; each matrix is coded once for all shapes."""
        if weights not in self._schedulers:
            self._schedulers[weights] = GraphScheduler(
                self._options.schedule, self._pool, self._library, code=self._coding(weights)
            )
        return self._schedulers[weights]

    def _coding(self, weights: WeightFormat) -> Callable[[Graph], Graph]:
        coded = self._coded(weights)
        if self._options.compute == "bf16" and self._target.isa.has_tiles:
            return lambda graph: coded(round_convolutions(graph))
        return coded

    def _coded(self, weights: WeightFormat) -> Callable[[Graph], Graph]:
        compute = self._options.compute
        if isinstance(weights, str):
            return pair_weights if compute == "bf16" else lambda graph: graph
        if weights == BYTE_BITS:
            return partial(byte_weights, compute=compute)
        moments = None if self._moments is None else self._moments.of
        steps = int8_form(self._target.isa).steps if compute == "int8" else None
        coder = CachingCoder(weights, self._drop_pages, moments, steps)
        return partial(code_weights, coder=coder, compute=compute)

    def _free_moments(self) -> None:
        """Free the moments and examples that no later graph needs."""
        if self._moments is None:
            return
        if self.weights is None:  # the moments would be in memory for a session that has no weights yet
            self._moments.forget()
        elif self.weights in ("fp32", BYTE_BITS):
            self._moments.clear()
        else:
            self._moments.free_coded()

    def _too_little(self, lowered: LoweredGraph, weights: WeightFormat) -> BudgetError:
        kind = "fp32" if isinstance(weights, str) else f"{weights} bit{'' if weights == 1 else 's'}"
        sizes, image = lowered.sizes, lowered.image
        own = f", the model's own in memory {sizes.given_bytes} (less, if it is given by its path)"
        advice = ""
        if self._options.weights != "auto":
            advice = ', or weights="auto", which keeps them in as few bits as that takes'
        return BudgetError(
            f"{self._options.memory_bytes} bytes of memory are too little for {self._name} at these shapes: "
            f"weights in {kind} take {sizes.form_bytes}{own if sizes.given_bytes else ''}, activations "
            f"{image.arena_bytes}. Give at least {lowered.n_bytes} bytes, or smaller shapes{advice}."
        )


def _plane_bytes(graph: Graph) -> int:
    """Bytes of one plane of all coded matrices."""
    at = {"PlaneMatMul": 1, "PlaneMatMulInteger": 2, "PlaneMatMulBfloat": 1}
    planes = [graph.constants[node.inputs[at[node.op]]] for node in graph.nodes if node.op in at]
    return max(1, sum({id(array): array.nbytes // len(array) for array in planes}.values()))
