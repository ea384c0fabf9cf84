"""Compile an ONNX model for new shapes, within a memory limit."""

from collections.abc import Callable, Mapping, Sequence
from typing import final

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import Image
from pliant.compiler.passes.pack_texts import TextShape
from pliant.compiler.rewrite.coder import InputMoments
from pliant.errors import BudgetError, PliantError
from pliant.ir.graph import Graph, TensorType
from pliant.ir.port import Port
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.onnx.bind.onnx_blocks import host_names, require_one_graph
from pliant.models.onnx.onnx_file import OnnxModel
from pliant.profile.system_memory import machine_bytes
from pliant.run.arena import Arena
from pliant.run.batches.packed_texts import make_packed_texts
from pliant.run.batches.token_feed import IS_TOKEN
from pliant.run.graph.array_stage import AllTensors
from pliant.run.graph.example_moments import ExampleMoments
from pliant.run.graph.graph_runner import GraphRunner, one_stage_runner
from pliant.run.graph.input_moments import group_examples, measure_moments
from pliant.run.graph.lowering import LoweredGraph, Lowering
from pliant.run.graph.model_binder import ModelBinder
from pliant.run.graph.model_options import ModelOptions
from pliant.run.graph.open_graph import GraphOpener, check_memory, packed_bytes
from pliant.run.graph.schedule_graph import ScheduleReport
from pliant.run.graph.symbolic_forms import SizedStage, SymbolicForms
from pliant.run.host.block_stage import Types
from pliant.run.host.part_binder import PartBinder, PartSteps
from pliant.run.packed_weights import SharedWeights
from pliant.run.session.ports import Shapes, symbols


@final
class OnnxCompiler:
    """Makes the images of one model, which share weights and an arena. The owner serialises calls.

    `has_parts` is whether data-dependent shapes divide the model into parts, None if unknown. `schedule`
    reports how the last graph was scheduled.
    """

    def __init__(
        self,
        model: OnnxModel,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        options: ModelOptions,
        examples: Sequence[AllTensors],
        pool: ThreadPool,
        library: Library,
        name: str,
        target: Target | None,
    ) -> None:
        self._model, self._inputs, self._outputs = model, inputs, outputs
        self._options, self._pool, self._library = options, pool, library
        self._is_tensors = all(port.element is None for port in inputs)
        self.has_parts: bool | None = None if self._is_tensors else True
        self.weights, self.arena = SharedWeights(model.drop_pages, model.constants.values()), Arena()
        self.forms = SymbolicForms()
        self._steps: list[PartSteps] = []
        self.binder = binder = ModelBinder(model, options.buckets)

        def measure() -> InputMoments:
            groups = group_examples(binder, inputs, model.source, examples)
            return measure_moments(groups, options.without, pool, library)

        self.lowering = Lowering(
            name,
            options,
            pool,
            library,
            model.drop_pages,
            self.weights.own,
            target,
            ExampleMoments(measure) if examples else None,
        )
        self.schedule: ScheduleReport | None = None

    def compile(
        self, shapes: Shapes, feeds: AllTensors, make_room: Callable[[LoweredGraph], None]
    ) -> GraphRunner:
        """An image for these shapes; `make_room` is called before its weights are packed.

        Raises BudgetError, GraphError, and InputError for options that do not suit a model in parts.
        """
        self._model.check_same()
        own = {x: shape for x, shape in shapes.items() if x != IS_TOKEN}
        texts = TextShape(*shapes[IS_TOKEN]) if IS_TOKEN in shapes else None
        stage = None if texts else self.forms.stage(own) or self.new_form(own)
        if stage is not None and not stage.form.graph.waiting:
            check_memory(stage.numbers, 0, self._model.source)
            return one_stage_runner(stage, self._pool, sizes=stage.weight_sizes)
        if stage is not None:
            self._options.check_parts(host_names(stage.form.graph.waiting))
            return self._parts.bind_sized(stage, *self._in_parts(own), self._steps)
        part = self.binder.bind(own, feeds)
        self.has_parts = bool(part.waiting) or not self._is_tensors
        if self.has_parts:
            self._options.check_parts(host_names(part.waiting))
            return self._parts.bind_fixed(part, *self._in_parts(own), self._steps)
        lowered = self.lowering.lower(part.graph, texts)
        self.schedule = lowered.scheduled.report
        check_memory(lowered.image, packed_bytes(lowered.image), self._model.source)
        make_room(lowered)
        return self._opener.open(lowered, make_packed_texts(lowered.image, texts))

    def fits(self, shapes: Shapes) -> bool | None:
        """Whether there is memory for these shapes; None if the model does not run on them, or if values of
        inputs decide.
        """
        try:
            part = self.binder.bind(shapes, {})
            if part.waiting:
                return None
            self.lowering.lower(part.graph)
        except BudgetError:
            return False
        except PliantError:
            return None
        return True

    def new_form(self, shapes: Shapes) -> SizedStage | None:
        """A stage for these shapes on a form that serves other sizes too; None if none can be made."""
        if not self._options.is_open or self.binder.by_value or not self._is_tensors:
            return None
        if any(port.dims is None for port in self._inputs):
            return None
        stage = self.forms.open(shapes, self._open_dims, self.binder.bind_first, self._opener.open_form)
        if stage is not None:
            self.has_parts = bool(stage.form.graph.waiting)
        return stage

    def serves(self, shapes: Shapes) -> bool:
        """Whether a form serves these shapes. Safe to call while another thread compiles."""
        return IS_TOKEN not in shapes and self.forms.serve(shapes)

    def graph(self, shapes: Shapes, feeds: AllTensors) -> Graph:
        """The graph for these shapes, after all passes. Raises as `compile`."""
        part = self.binder.bind(shapes, feeds)
        scheduled = self.lowering.schedule(require_one_graph(part, self._model.source))
        self.schedule = scheduled.report
        return scheduled.graph

    def symbolic_image(self, shapes: Shapes) -> tuple[Image, Mapping[str, int]] | None:
        """The image of a form that serves these shapes, and its sizes for them; None if there is none."""
        stage = None if IS_TOKEN in shapes else self.forms.stage(shapes) or self.new_form(shapes)
        if stage is None:
            return None
        graph = self.forms.graph(shapes, self._open_dims, self.binder.bind_first)
        if graph is None or graph.waiting:
            return None
        sizes = dict(zip(graph.family.names, graph.family.sizes(shapes) or (), strict=True))
        return self.lowering.lower(graph.graph).image, sizes

    def clear(self) -> None:
        """Free all memory."""
        self.weights, self.arena = SharedWeights(), Arena()
        self.forms, self._steps = SymbolicForms(), []
        self.lowering.clear()

    @property
    def _open_dims(self) -> dict[str, tuple[str | None, ...]]:
        return {port.name: symbols(port) for port in self._inputs}

    def _in_parts(self, shapes: Shapes) -> tuple[Types, Mapping[str, Port]]:
        """Inputs and outputs of a model that data-dependent shapes divide into parts."""
        fed = [port for port in self._inputs if port.name not in self.binder.by_value]
        inputs = {p.name: None if p.element else TensorType(p.dtype, shapes[p.name]) for p in fed}
        return inputs, {port.name: port for port in self._outputs}

    @property
    def _opener(self) -> GraphOpener:
        lowering, weights, arena = self.lowering, self.weights, self.arena
        return GraphOpener(lowering, weights, arena, self._pool, self._library, self._model.source)

    @property
    def _parts(self) -> PartBinder:
        opener, options = self._opener, self._options
        return PartBinder(self._model, opener, options.images, machine_bytes(), options.is_open)
