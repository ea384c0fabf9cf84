"""What all sessions on ONNX models are to their users: run, inputs and outputs, a context; no program."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NoReturn, Self, overload

import numpy as np

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.kernels.turns import Turns
from pliant.run.ports import Feeds, Shapes, by_name, shapes_of


class Answering(ABC):
    """Answers feeds with outputs; threads take turns."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    _turns: Turns

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "a session holds threads and memory of its process and cannot be pickled or copied: call "
            "pliant.compile or pliant.load in the process that runs it."
        )

    def get_inputs(self) -> list[Port]:
        """The inputs, as onnxruntime's users ask for them: each has `name`, `type` and `shape`."""
        return list(self.inputs)

    def get_outputs(self) -> list[Port]:
        """The outputs, likewise."""
        return list(self.outputs)

    @overload
    def run(self, feeds: Feeds, out: Feeds | None = None) -> dict[str, np.ndarray]: ...

    @overload
    def run(self, feeds: Sequence[str] | None, out: Feeds) -> list[np.ndarray]: ...

    def run(
        self, feeds: Feeds | Sequence[str] | None, out: Feeds | None = None
    ) -> dict[str, np.ndarray] | list[np.ndarray]:
        """Outputs by name, for feeds by name; those of `out` are written into the arrays given there.

        As onnxruntime's users write it, `run(names or None, feeds)` gives a list. Raises InputError
        naming a feed that is missing, unknown, or of the wrong type or shape; GraphError when the model
        cannot be compiled for these shapes.
        """
        given, into, names = by_name(feeds, out, self.outputs)
        shapes = shapes_of(self.inputs, given)
        with self._turns.lock:
            results = self._answer(given, into, shapes)
        return results if names is None else [results[y] for y in names]

    @abstractmethod
    def close(self) -> None:
        """Let go of all memory; running afterwards is an error."""

    @abstractmethod
    def _answer(self, feeds: Feeds, out: Feeds | None, shapes: Shapes) -> dict[str, np.ndarray]:
        """Outputs for feeds that fit the inputs, while no other thread runs."""
