"""The input and the head of a model on a primary, for the inputs of one run after another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from pliant.compiler.executable.stage import BoundStage, StageForm
from pliant.errors import InputError
from pliant.ir.executable import ARENA
from pliant.ir.graph import TensorType
from pliant.ir.port import Port
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.buffer import Buffer
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_architecture import PreparedInput
from pliant.plan.split.split_program import HEAD, INPUT
from pliant.run.session.feeds import convert_feeds
from pliant.run.session.ports import shapes_of

_MOST_BOUND = 64
"""Maximum number of bound ends kept, two per length."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledEnd:
    """The input or the head for one number of rows."""

    form: StageForm
    kernels: Mapping[str, int]
    weights: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class _BoundEnd:
    """An end, with the arrays of its feeds or answer; `joined` is the tensor that it shares with layers."""

    stage: BoundStage
    ports: Mapping[str, np.ndarray]
    joined: str


@final
class EndStages:
    """The ends of one plan's runs: an input and a head for each input, which lie one after another in rows.

    `x` are the first layer's input and the last layer's output, float32 [rows, hidden], by INPUT and HEAD.
    Ends of all lengths share one memory; tensors inside them lie in `arena` if it is large enough.
    """

    def __init__(
        self,
        compiled: Callable[[str, int], CompiledEnd],
        pool: ThreadPool,
        x: Mapping[str, np.ndarray],
        arena: np.ndarray,
    ) -> None:
        self._compiled, self._pool, self._x, self._arena = compiled, pool, x, arena
        self._memory = {ARENA: arena}
        self._bound: dict[tuple[str, int], _BoundEnd] = {}
        self._inputs: Sequence[PreparedInput] = ()
        self._answers: tuple[np.ndarray, ...] = ()

    @property
    def buffers(self) -> tuple[np.ndarray, ...]:
        """The memory in addition to `x` and the arena, for memory accounting."""
        return tuple(memory for memory in self._memory.values() if memory is not self._arena)

    def begin(self, inputs: Sequence[PreparedInput]) -> None:
        """Set the inputs of the next run; compiles what is missing. Raises InputError for invalid feeds."""
        self._answers = ()
        for rows in sorted({one.rows for one in inputs}, reverse=True):  # the largest needs the most memory
            for kernel in (INPUT, HEAD):
                self._end(kernel, rows)
        self._inputs = [replace(one, feeds=self._checked(one)) for one in inputs]

    def compute(self, kernel: str) -> None:
        """Compute all inputs, or all answers. Rows without an input become 0."""
        first, answers = 0, []
        for one in self._inputs:
            end = self._end(kernel, one.rows)
            if kernel == INPUT:
                for name, array in one.feeds.items():
                    end.ports[name][...] = array
            end.stage.point(end.joined, Buffer.of(self._x[kernel][first : first + one.rows]))
            end.stage.walk((one.rows,), self._pool)
            answers += [port.copy() for port in end.ports.values() if kernel == HEAD]
            first += one.rows
        if kernel == INPUT:
            self._x[INPUT][first:] = 0.0
        self._answers = tuple(answers)

    def answers(self) -> tuple[np.ndarray, ...]:
        """Return the answers of the last run. Raises InputError before they exist."""
        if not self._answers:
            raise InputError("this run has no answer yet: its head has not run on this device.")
        return self._answers

    def _checked(self, one: PreparedInput) -> Mapping[str, np.ndarray]:
        into = self._end(INPUT, one.rows).ports
        ports = [Port(name, str(array.dtype), array.shape) for name, array in into.items()]
        arrays = convert_feeds(ports, one.feeds)
        shapes_of(ports, arrays)
        return arrays

    def _end(self, kernel: str, rows: int) -> _BoundEnd:
        end = self._bound.pop((kernel, rows), None) or self._bind(kernel, rows)
        self._bound[kernel, rows] = end  # most recent last
        if len(self._bound) > _MOST_BOUND:
            del self._bound[next(iter(self._bound))]
        return end

    def _bind(self, kernel: str, rows: int) -> _BoundEnd:
        """Bind an end to memory, so that its step is one native call."""
        end = self._compiled(kernel, rows)
        program = end.form.program
        own, (joined,) = program.inputs, program.outputs
        if kernel == HEAD:
            own, (joined,) = program.outputs, program.inputs
        ports = {name: self._array(f"{kernel} {name}", type_) for name, type_ in own.items()}
        at = {name: Buffer.of(array) for name, array in (*end.weights.items(), *ports.items())}
        at[joined] = Buffer.of(self._x[kernel][:rows])
        at[ARENA] = Buffer.of(self._space(ARENA, end.form.image.arena_bytes))
        return _BoundEnd(BoundStage(end.form, end.kernels, at), ports, joined)

    def _array(self, name: str, type_: TensorType) -> np.ndarray:
        return self._space(name, type_.n_bytes)[: type_.n_bytes].view(type_.numpy).reshape(type_.shape)

    def _space(self, name: str, n_bytes: int) -> np.ndarray:
        """Return memory of at least `n_bytes`; ends that are bound to a smaller one are bound again."""
        if len(self._memory.get(name, ())) < n_bytes or name not in self._memory:
            self._memory[name] = aligned_bytes(n_bytes)
            self._bound.clear()
        return self._memory[name]
