"""Run the iterations of a loop body that is one executable, and bind the unchanged tensors only once."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from pliant.kernels.runtime.aligned_memory import address
from pliant.run.graph.array_stage import AllTensors, ExecutableStage
from pliant.run.graph.graph_runner import GRAPH
from pliant.run.graph.symbolic_forms import SizedStage

if TYPE_CHECKING:
    from pliant.run.host.block_stage import BlockStage


@final
class LoopIterations:
    """Runs a loop body iteration by iteration, with the `tensors` of the enclosing graph.

    The first `n_states` outputs are passed to the next iteration only. After two iterations with equal types
    and shapes, further iterations like them skip the lookup and binding.
    """

    def __init__(self, stage: "BlockStage", tensors: AllTensors, n_states: int) -> None:
        self._stage, self._tensors, self._n_states = stage, tensors, n_states
        self._kinds: list[object] = []
        self._loop: _DoubleBufferedLoop | None = None

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The body's outputs."""
        if self._loop is not None:
            results = self._loop.run(inputs)
            if results is not None:
                return results
            self._loop = None
        block = self._stage.block
        tensors = {**self._tensors, **dict(zip(block.inputs, inputs, strict=True))}
        made = self._stage.walk(tensors, None)
        kinds: list[object] = [_kind(a) for a in inputs]
        if kinds == self._kinds:
            self._loop = _double_buffered_loop(self._stage, tensors, inputs, self._n_states)
        self._kinds = kinds
        return [made[y] for y in block.outputs]


def _double_buffered_loop(
    stage: "BlockStage", tensors: AllTensors, inputs: Sequence[Any], n_states: int
) -> "_DoubleBufferedLoop | None":
    """The runner that repeats the iteration just run on these inputs; None if the body is more than one
    executable.
    """
    forms = stage.shared.forms
    runner = next(reversed(forms.values())) if forms and stage.shared.bound.nodes else None
    if runner is None or runner.stages.keys() != {GRAPH}:
        return None
    executable = runner.stages[GRAPH]
    arrays = [*inputs, *(tensors[x] for x in stage.inputs)]
    if not all(isinstance(a, np.ndarray) and a.flags.c_contiguous for a in arrays):
        return None
    if not isinstance(executable, ExecutableStage | SizedStage):
        return None
    return _DoubleBufferedLoop(stage, executable, inputs, n_states)


@final
class _DoubleBufferedLoop:
    """Repeats one executable at one size. States alternate between two sets of arrays."""

    def __init__(
        self,
        stage: "BlockStage",
        executable: ExecutableStage | SizedStage,
        inputs: Sequence[np.ndarray],
        n_states: int,
    ) -> None:
        block, types = stage.block, executable.output_types
        self._bound, fixed, self._walk = executable.last_binding()
        self._passed = stage.passed
        self._inputs, self._outputs = block.inputs, block.outputs
        self._kinds = [(a.shape, a.dtype) for a in inputs]
        bound = [(i, x) for i, x in enumerate(block.inputs) if x in executable.inputs]
        self._read = [i for i, _ in bound]
        kept = set(block.outputs[n_states:])
        self._fresh = {y: (t.shape, t.numpy) for y, t in types.items() if y in kept}
        pair = [{y: np.empty(t.shape, t.numpy) for y, t in types.items() if y not in kept} for _ in range(2)]
        self._now, self._next = ((one, {y: address(a) for y, a in one.items()}) for one in pair)
        self._at = {id(a): address(a) for one in pair for a in one.values()}
        pointed = [y for y in types if y not in executable.inputs and y not in fixed]
        self._pointed = pointed
        self._slots = self._bound.slots([*(x for _, x in bound), *pointed])

    def run(self, inputs: Sequence[Any]) -> list[Any] | None:
        """As `LoopIterations`; None for inputs of other types or shapes."""
        at = self._at
        for a, (shape, dtype) in zip(inputs, self._kinds, strict=True):
            if not isinstance(a, np.ndarray) or a.shape != shape or a.dtype != dtype:
                return None
            if id(a) not in at and not a.flags.c_contiguous:
                return None
        passed = self._pass_through(inputs) if self._passed else {}
        if passed is None:
            return None
        arrays, addresses = self._now
        self._now, self._next = self._next, self._now
        made, places = {**passed, **arrays}, addresses
        if self._fresh:
            pieces = {y: np.empty(shape, dtype) for y, (shape, dtype) in self._fresh.items()}
            made |= pieces
            places = {**addresses, **{y: address(a) for y, a in pieces.items()}}
        read = (inputs[i] for i in self._read)
        self._bound.place(
            self._slots, [*(at.get(id(a)) or address(a) for a in read), *(places[y] for y in self._pointed)]
        )
        self._walk(self._bound.table)
        self._bound.check()
        self._bound.copy(made)
        return [made[y] for y in self._outputs]

    def _pass_through(self, inputs: Sequence[Any]) -> Mapping[str, Any] | None:
        """The outputs that no node makes; None if a state array would be needed for more than two
        iterations.
        """
        own = dict(zip(self._inputs, inputs, strict=True))
        found = {y: own.get(y) if value is None else value for y, value in self._passed.items()}
        is_kept = any(value is None or id(value) in self._at for value in found.values())
        return None if is_kept else found


def _kind(value: Any) -> object:
    return (value.dtype, value.shape) if isinstance(value, np.ndarray) else None
