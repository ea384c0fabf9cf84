"""Make the programs of a model divided by data-dependent shapes: an executable, host steps, and parts bound
later.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, final

import numpy as np

from pliant.ir.graph import TensorType
from pliant.ir.port import Port
from pliant.ir.program import Compute, Program, Segment, Step
from pliant.models.onnx.bind.onnx_blocks import BoundPart, NodeBlock, ScopedNode, body_block
from pliant.models.onnx.bind.onnx_constants import KnownConstants, SymbolicConstant, constants_at
from pliant.models.onnx.bind.onnx_hoist import hoist_products
from pliant.models.onnx.bind.onnx_host import CONTROL
from pliant.models.onnx.bind.onnx_symbolic import SymbolicGraph
from pliant.models.onnx.onnx_file import OnnxModel
from pliant.run.graph.array_stage import ArrayStage
from pliant.run.graph.graph_runner import GRAPH, LANE, GraphRunner
from pliant.run.graph.open_graph import GraphOpener, check_memory
from pliant.run.graph.schedule_graph import ScheduleReport
from pliant.run.graph.symbolic_forms import SizedStage
from pliant.run.host.block_stage import REST, BlockForms, BlockStage, Types
from pliant.run.host.control_stage import NodeBody, control_flow
from pliant.run.host.host_operators import HostFunction, host_function, with_input_errors
from pliant.run.host.host_stage import HostStage
from pliant.run.weight_sizes import NO_WEIGHTS, WeightSizes

_MOST_STEPS = 16

Outputs = Mapping[str, Port | TensorType]


@dataclass(frozen=True, slots=True, eq=False)
class PartBinder:
    """Makes programs from the parts of one model.

    Each place with data-dependent shapes keeps the `n_forms` most recently used programs. `is_open`:
    executables may serve several sizes.
    """

    model: OnnxModel
    opener: GraphOpener
    n_forms: int
    max_bytes: int
    is_open: bool
    _numbers: Iterator[int] = field(default_factory=count)

    def next_number(self) -> str:
        """A number that is unique in the model, for the names that a block makes."""
        return f"{next(self._numbers)}"

    def bind_fixed(
        self, part: BoundPart, inputs: Types, outputs: Outputs, others: "list[PartSteps]"
    ) -> GraphRunner:
        """The program of a part for one shape: its executable, the host steps that can run then, and the
        rest.

        `inputs` that are no tensors have no type. `others` caches the steps that follow executables of this
        part.
        """
        made = part.graph.outputs if part.graph.nodes else ()
        steps = self._steps(part, (inputs, made, outputs), others).stages(())
        if not part.graph.nodes:
            return self._runner(steps, inputs, outputs)
        compiled = self.opener.compile(part.graph)
        every = {GRAPH: compiled.stages[GRAPH], **steps}
        return self._runner(every, inputs, outputs, compiled.schedule, compiled.sizes)

    def bind_sized(
        self, stage: SizedStage, inputs: Types, outputs: Outputs, others: "list[PartSteps]"
    ) -> GraphRunner:
        """As `bind_fixed`, for one size of a form."""
        check_memory(stage.numbers, 0, self.opener.source)
        graph = stage.form.graph
        made = graph.graph.outputs if graph.graph.nodes else ()
        steps = self._steps(graph, (inputs, made, outputs), others).stages(stage.sizes)
        every: dict[str, ArrayStage] = {GRAPH: stage, **steps} if graph.graph.nodes else steps
        return self._runner(every, inputs, outputs, None, stage.weight_sizes)

    def _steps(
        self,
        part: BoundPart | SymbolicGraph,
        tensors: tuple[Collection[str], Collection[str], Collection[str]],
        others: "list[PartSteps]",
    ) -> "PartSteps":
        """The steps after a part; equal steps of another executable are reused."""
        for other in others:
            if other.serves(part, tensors[1]):
                return other
        made = PartSteps(part, *tensors, self)
        others[:] = [*others[-_MOST_STEPS + 1 :], made]
        return made

    def _runner(
        self,
        stages: Mapping[str, ArrayStage],
        inputs: Types,
        outputs: Outputs,
        schedule: ScheduleReport | None = None,
        sizes: WeightSizes = NO_WEIGHTS,
    ) -> GraphRunner:
        segment = Segment(tuple(Step(LANE, Compute(kernel, rows=1)) for kernel in stages))
        typed = {x: t for x, t in inputs.items() if t is not None}
        program = Program((segment,), (), ())
        return GraphRunner(program, stages, typed, outputs, self.opener.pool, schedule, sizes)


@final
class PartSteps:
    """The steps after the executable of a part, for all its sizes: host steps that can run then, and the
    rest.

    `made` are the tensors that the executable makes.
    """

    def __init__(
        self,
        part: BoundPart | SymbolicGraph,
        inputs: Collection[str],
        made: Collection[str],
        outputs: Collection[str],
        binder: PartBinder,
    ) -> None:
        self._waiting, self._made, known = part.waiting, made, part.known
        self._known: KnownConstants = known
        self._hosted: dict[str, _HostNode] = {}
        there, rest = set(made), []
        for placed in part.waiting:
            if placed.host and placed.reads <= {*inputs, *known, *there}:
                self._hosted[_step_name(placed.node, self._hosted)] = _HostNode(placed, known, binder)
                there.update(placed.makes)
            else:
                rest.append(placed)
        left = tuple(y for y in outputs if y not in there)
        self._rest = BlockForms(NodeBlock(tuple(rest), left), known, binder) if rest or left else None

    def serves(self, part: BoundPart | SymbolicGraph, made: Collection[str]) -> bool:
        """Whether these are the steps after an executable of `part`, which makes `made`."""
        if self._known is part.known:
            return True
        return (
            set(made) == set(self._made)
            and self._known.keys() == part.known.keys()
            and all(_is_same(a, part.known[x]) for x, a in self._known.items())
            and [placed.host for placed in self._waiting] == [placed.host for placed in part.waiting]
            and all(a.node == b.node for a, b in zip(self._waiting, part.waiting, strict=True))
        )

    def stages(self, sizes: tuple[int, ...]) -> dict[str, ArrayStage]:
        """The stages after an executable of these sizes."""
        stages: dict[str, ArrayStage] = {name: hosted.stage(sizes) for name, hosted in self._hosted.items()}
        return stages if self._rest is None else {**stages, REST: BlockStage(self._rest, sizes)}


@final
class _HostNode:
    """A node that runs on the host, and the blocks of its bodies."""

    def __init__(self, placed: ScopedNode, known: KnownConstants, binder: PartBinder) -> None:
        node = self._node = placed.node
        self._placed = placed
        self._known = {x: known[x] for x in known.keys() & placed.reads}
        self._where = f"node {node.name or node.output[0]!r} ({node.op_type})"
        self._run: HostFunction | None = None
        self._bodies: dict[str, _BodyForms] = {}
        if node.op_type not in CONTROL:
            self._run = with_input_errors(host_function(node, placed.scope.opsets), node, self._where)
            return
        self._bodies = {a.name: self._body(a.g, binder) for a in node.attribute if a.HasField("g")}

    def stage(self, sizes: tuple[int, ...]) -> HostStage:
        """Its stage after an executable of these sizes."""
        known = constants_at(self._known, sizes)
        if (run := self._run) is not None:
            return HostStage(self._placed, known, lambda given, tensors: run(given))
        bodies = {x: body.at(sizes) for x, body in self._bodies.items()}
        schema = self._placed.scope.schema(self._node)
        assert schema is not None  # looked up before the node was given to the host
        flow = control_flow(self._node, bodies, schema.since_version, self._where)
        stages = [
            stage for body in bodies.values() for stage in (body.before, body.stage) if stage is not None
        ]
        return HostStage(self._placed, known, flow, stages)

    def _body(self, body: Any, binder: PartBinder) -> "_BodyForms":
        number, numbers = binder.next_number(), count()

        def fresh(near: str) -> str:
            return f"{near}#{number}.{next(numbers)}"

        block = body_block(body, self._placed, fresh, binder.model.external)
        if self._node.op_type != "Loop":
            return _BodyForms(body, None, BlockForms(block, self._known, binder))
        known = {**self._known, **self._unchanged(block)}
        before, block = hoist_products(block, known, fresh)
        forms = None if before is None else BlockForms(before, known, binder)
        return _BodyForms(body, forms, BlockForms(block, known, binder))

    def _unchanged(self, block: NodeBlock) -> KnownConstants:
        """The loop states that each iteration passes on unchanged and whose values are known; often
        weights.
        """
        states = zip(block.inputs[2:], block.outputs[1:], self._node.input[2:], strict=False)
        first = {x: self._known.get(given) for x, y, given in states if x == y}
        return {x: value for x, value in first.items() if isinstance(value, np.ndarray)}


@dataclass(frozen=True, slots=True, eq=False)
class _BodyForms:
    """A body of a node, and the part of it that is computed once before its first iteration."""

    graph: Any
    before: BlockForms | None
    forms: BlockForms

    def at(self, sizes: tuple[int, ...]) -> NodeBody:
        before = None if self.before is None else BlockStage(self.before, sizes)
        return NodeBody(self.graph, BlockStage(self.forms, sizes), before)


def _is_same(a: np.ndarray | SymbolicConstant, b: np.ndarray | SymbolicConstant) -> bool:
    if isinstance(a, SymbolicConstant) or isinstance(b, SymbolicConstant):
        return False  # values that depend on sizes belong to one family
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def _step_name(node: Any, taken: Collection[str]) -> str:
    """The name of a host step: its operator and node name, without blanks."""
    name = "_".join(f"{node.op_type}:{node.name or node.output[0]}".split())
    return name if name not in taken else f"{name}#{len(taken)}"
