"""`If`, `Loop`, `Scan` and `SequenceMap`, with bodies that are bound like other parts of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pliant.errors import GraphError, InputError
from pliant.ir.graph import TensorType
from pliant.models.onnx.onnx_nodes import node_of
from pliant.models.onnx.onnx_tensor import dtype_name
from pliant.run.graph.array_stage import AllTensors
from pliant.run.host.control_flow import Empty, loop, scan, sequence_map
from pliant.run.host.host_operators import with_input_errors
from pliant.run.host.host_stage import HostWork
from pliant.run.host.loop_iterations import LoopIterations

if TYPE_CHECKING:
    from pliant.run.host.block_stage import BlockStage

_FIRST_SCAN = 9
"""In earlier opsets, Scan ran over a batch of sequences of different lengths."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeBody:
    """A body of a node, its stage, and the stage that runs once `before` a loop over it."""

    graph: Any
    stage: "BlockStage"
    before: "BlockStage | None" = None

    def run(self, inputs: Sequence[Any], tensors: AllTensors) -> list[Any]:
        """The body's outputs, from its own inputs and the tensors of the enclosing graph."""
        own = dict(zip(self.stage.block.inputs, inputs, strict=True))
        made = self.stage.walk({**tensors, **own}, None)
        return [made[y] for y in self.stage.block.outputs]


def control_flow(node: Any, bodies: Mapping[str, NodeBody], version: int, where: str) -> HostWork:
    """The function that runs a control-flow node. Raises GraphError for a Scan before opset 9."""
    if node.op_type == "If":
        return partial(_branch, bodies["then_branch"], bodies["else_branch"], where)
    body = bodies["body"]
    read = node_of(node)
    if node.op_type == "Scan" and version < _FIRST_SCAN:
        raise GraphError(f"{where} is of opset {version}: convert the model to opset 9 or newer.")

    def run(inputs: Sequence[Any], tensors: AllTensors) -> Sequence[Any]:
        return with_input_errors(partial(flow, tensors), node, where)(inputs)

    def flow(tensors: AllTensors, inputs: Sequence[Any]) -> Sequence[Any]:
        if body.before is not None:
            tensors = {**tensors, **body.before.walk(tensors, None)}
        match node.op_type:
            case "Loop":
                n_states = len(body.graph.input) - 2
                given = [*inputs, None, None][: 2 + n_states]
                again = LoopIterations(body.stage, tensors, 1 + n_states)
                return loop(given, again, _counter_shape(body.graph), _empties(body.graph, 1 + n_states))
            case "Scan":
                n_states = len(inputs) - read.integer("num_scan_inputs")
                again = LoopIterations(body.stage, tensors, n_states)
                return scan(inputs, read, again, _empties(body.graph, n_states))
            case _:
                return sequence_map(inputs, partial(body.run, tensors=tensors), len(node.output))

    return run


def _branch(
    then: NodeBody, otherwise: NodeBody, where: str, inputs: Sequence[Any], tensors: AllTensors
) -> Sequence[Any]:
    (condition,) = inputs
    if condition.size != 1:
        raise InputError(f"{where}: its condition has {condition.size} values; it must have one.")
    return (then if condition.all() else otherwise).run((), tensors)


def _counter_shape(body: Any) -> tuple[int, ...]:
    return (1,) * len(body.input[0].type.tensor_type.shape.dim)


def _empties(body: Any, first: int) -> list[Empty]:
    """The values of scan outputs of a body that never ran: open sizes are 0."""
    return [partial(_empty, value) for value in body.output[first:]]


def _empty(value: Any) -> np.ndarray:
    tensor = value.type.tensor_type
    sizes = (int(d.dim_value) for d in tensor.shape.dim)
    return np.empty((0, *sizes), TensorType(dtype_name(tensor.elem_type, value.name), ()).numpy)
