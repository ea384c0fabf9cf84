"""Parts of a model whose shapes follow from data: they are bound when their tensors are there."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Never, final

import numpy as np

from pliant.arrays import Float64
from pliant.compiler.executable.encode_image import Row
from pliant.compiler.rules.rules import RULES
from pliant.ir.graph import Graph, TensorType
from pliant.ir.port import Port
from pliant.ir.program import Compute, Program, Segment, Step
from pliant.kernels.runtime.thread_pool import Pool
from pliant.models.onnx.bind.onnx_bind import bind_next
from pliant.models.onnx.bind.onnx_blocks import Block, Part, Placed, body_block
from pliant.models.onnx.bind.onnx_host import CONTROL
from pliant.models.onnx.onnx_file import OnnxModel
from pliant.models.onnx.onnx_tensor import ELEMENT_TYPES
from pliant.run.arena import Arena
from pliant.run.graph.array_stage import AllTensors, ArrayStage, Tensors
from pliant.run.graph.graph_runner import GRAPH, LANE, GraphRunner
from pliant.run.host.control_stage import Body, control_flow
from pliant.run.host.host_operators import checked, host_function
from pliant.run.host.host_stage import HostStage, in_turn, into
from pliant.run.session.ports import Feeds
from pliant.run.weight_sizes import NO_WEIGHTS

REST = "rest"
"""The step that binds what is left once its tensors are there."""


@dataclass(frozen=True, slots=True, eq=False)
class PartBinder:
    """How parts of one model become programs: `compiled` makes one of a graph; `numbers` make new names.

    Each place where shapes follow from data keeps at most `n_forms` programs, the latest used.
    """

    model: OnnxModel
    compiled: Callable[[Graph], GraphRunner]
    pool: Pool
    n_forms: int
    numbers: Iterator[int]
    max_bytes: int

    def runner(
        self,
        part: Part,
        inputs: Mapping[str, TensorType | None],
        outputs: Mapping[str, Port | TensorType],
    ) -> GraphRunner:
        """The program of a part: its executable, the host steps that are ready then, and the rest.

        `inputs` that are no tensors have no type.
        """
        stages: dict[str, ArrayStage] = {}
        sizes, schedule = NO_WEIGHTS, None
        made: set[str] = set()
        if part.graph.nodes:
            compiled = self.compiled(part.graph)
            stages[GRAPH] = compiled.stages[GRAPH]
            sizes, schedule, made = compiled.sizes, compiled.schedule, set(part.graph.outputs)
        rest: list[Placed] = []
        for placed in part.waiting:
            if placed.host and placed.reads <= {*inputs, *part.known, *made}:
                stages[_step_name(placed.node, stages)] = self._host_stage(placed, part.known)
                made.update(placed.makes)
            else:
                rest.append(placed)
        left = tuple(y for y in outputs if y not in made)
        if rest or left:
            stages[REST] = BlockStage(Block(tuple(rest), left), part.known, self)
        steps = tuple(Step(LANE, Compute(kernel, rows=1)) for kernel in stages)
        typed = {x: t for x, t in inputs.items() if t is not None}
        program = Program((Segment(steps),), (), ())
        return GraphRunner(program, stages, typed, outputs, self.pool, schedule, sizes)

    def _host_stage(self, placed: Placed, known: Feeds) -> "HostStage":
        node = placed.node
        where = f"node {node.name or node.output[0]!r} ({node.op_type})"
        if node.op_type not in CONTROL:
            run = checked(host_function(node, placed.scope.opsets), node, where)
            return HostStage(placed, known, lambda given, tensors: run(given))
        bodies = {
            a.name: Body(a.g, self._body(a.g, placed, known)) for a in node.attribute if a.HasField("g")
        }
        schema = placed.scope.schema(node)
        assert schema is not None  # it was looked up before the node was left to the host
        flow = control_flow(node, bodies, schema.since_version, where)
        return HostStage(placed, known, flow, [body.stage for body in bodies.values()])

    def _body(self, body: Any, placed: Placed, known: Feeds) -> "BlockStage":
        block = body_block(body, placed, self._fresh, self.model.external)
        return BlockStage(block, {**known, **block.constants}, self)

    def _fresh(self, near: str) -> str:
        return f"{near}#{next(self.numbers)}"


@final
class BlockStage:
    """A block of nodes whose tensors' shapes are known when its turn comes: it is bound for them then.

    Its programs are kept by what it was given: type and shape of each tensor, that it is none of the others.
    Outputs that no node makes are passed on.
    """

    arena_bytes = 0

    def __init__(self, block: Block, known: Feeds, binder: PartBinder) -> None:
        made = {y for placed in block.nodes for y in placed.makes}
        passed = [y for y in block.outputs if y not in made]
        self.block = block
        self.inputs, self.outputs = tuple(sorted(block.reads - known.keys())), block.outputs
        self.weights: Feeds = {}
        self.forms: OrderedDict[tuple[object, ...], GraphRunner] = OrderedDict()
        self._known, self._binder = known, binder
        self._passed = {y: known.get(y) for y in passed}
        wanted = tuple(dict.fromkeys(y for y in block.outputs if y in made))
        self._bound = Block(block.nodes, wanted)

    @property
    def rows(self) -> Sequence[Row]:
        """The kernel calls of the latest run."""
        return next(reversed(self.forms.values())).rows if self.forms else ()

    def walk(self, tensors: AllTensors, out: Feeds | None) -> Tensors:
        """Its outputs; those of `out` are written into the arrays given there. Raises InputError."""
        made = self._passed_on(tensors, out)
        if self._bound.nodes:
            feeds = {x: tensors[x] for x in self.inputs}
            form = self._form(feeds)
            made |= form.walk(feeds, out)
        return made

    def walk_timed(self, tensors: AllTensors) -> tuple[Tensors, Float64[np.ndarray, " ends"]]:
        """As `walk`, with the time of each kernel call and host step."""
        made = self._passed_on(tensors, None)
        if not self._bound.nodes:
            return made, np.zeros(1)
        feeds = {x: tensors[x] for x in self.inputs}
        form = self._form(feeds)
        results, ends_s = form.walk_timed(feeds)
        return made | results, ends_s

    def beside(self, pool: Pool, arena: Arena) -> Never:
        raise in_turn(REST)

    def _passed_on(self, tensors: AllTensors, out: Feeds | None) -> Tensors:
        return {y: into(out, y, tensors[y] if a is None else a) for y, a in self._passed.items()}

    def _form(self, feeds: AllTensors) -> GraphRunner:
        key = tuple(_kind(a) for a in feeds.values())
        form = self.forms.get(key)
        if form is None:
            form = self.forms[key] = self._open(feeds)
            if len(self.forms) > self._binder.n_forms:
                self.forms.popitem(last=False)
        self.forms.move_to_end(key)
        return form

    def _open(self, feeds: AllTensors) -> GraphRunner:
        binder, types = self._binder, {x: type_of(a) for x, a in feeds.items()}
        part = bind_next(
            binder.model,
            self._bound,
            self._known,
            types,
            supported=RULES,
            numbers=binder.numbers,
            max_bytes=binder.max_bytes,
        )
        return binder.runner(part, types, dict.fromkeys(self._bound.outputs, _ANY))


_ANY = Port("", "", None)


def type_of(value: Any) -> TensorType | None:
    """The type of a tensor; None of what no kernel takes: a sequence, an absent value, text."""
    if isinstance(value, np.ndarray) and str(value.dtype) in ELEMENT_TYPES:
        return TensorType(str(value.dtype), value.shape)
    return None


def _kind(value: Any) -> object:
    return (value.dtype, value.shape) if isinstance(value, np.ndarray) else None


def nested(runner: GraphRunner) -> Iterator[GraphRunner]:
    """A program, and those that its steps have bound so far."""
    yield runner
    for stage in runner.stages.values():
        match stage:
            case BlockStage():
                blocks: Sequence[BlockStage] = [stage]
            case HostStage():
                blocks = stage.bodies
            case _:
                blocks = ()
        for form in chain.from_iterable(block.forms.values() for block in blocks):
            yield from nested(form)


def _step_name(node: Any, taken: Mapping[str, object]) -> str:
    """What a program calls a host step: its operator and name, without blanks."""
    name = "_".join(f"{node.op_type}:{node.name or node.output[0]}".split())
    return name if name not in taken else f"{name}#{len(taken)}"
