"""The interface that all sessions on ONNX models share: run, inputs, outputs, context manager."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NoReturn, Self, overload

import numpy as np

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.kernels.runtime.turns import Turns
from pliant.run.graph.feeds import GivenFeeds, fed_arrays
from pliant.run.graph.ports import Feeds, Shapes, by_name, shapes_of


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
    def run(self, feeds: GivenFeeds, out: Feeds | None = None) -> dict[str, np.ndarray]: ...

    @overload
    def run(self, feeds: Sequence[str] | None, out: GivenFeeds) -> list[np.ndarray]: ...

    def run(
        self, feeds: GivenFeeds | Sequence[str] | None, out: GivenFeeds | None = None
    ) -> dict[str, np.ndarray] | list[np.ndarray]:
        """Outputs by name, for feeds by name; those of `out` are written into the arrays given there.

        A feed is a numpy array, another library's tensor, or a list of numbers; run/graph/feeds.py says what
        is cast. As onnxruntime's users write it, `run(names or None, feeds)` gives a list. Raises InputError
        naming a feed that is missing, unknown, or of the wrong type or shape, and a size larger than the
        model takes; GraphError when the model cannot be compiled for these shapes.
        """
        given, into, names = by_name(feeds, out, self.outputs)
        arrays = fed_arrays(self.inputs, given)
        shapes = shapes_of(self.inputs, arrays)
        with self._turns.lock:
            results = self._answer(arrays, into, shapes)
        return results if names is None else [results[y] for y in names]

    def __call__(self, value: Any) -> np.ndarray | dict[str, np.ndarray]:
        """The answer of a model with one input: its array where it has one output, else arrays by name.

        `value` is what `run` takes as a feed. Raises InputError as `run` does, and for several inputs.
        """
        if len(self.inputs) != 1:
            names = [port.name for port in self.inputs]
            raise InputError(f"the model has {len(names)} inputs, {names}: call run({{name: array, ...}}).")
        results = self.run({self.inputs[0].name: value})
        return results[self.outputs[0].name] if len(self.outputs) == 1 else results

    @abstractmethod
    def close(self) -> None:
        """Let go of all memory; running afterwards is an error."""

    @abstractmethod
    def _answer(self, feeds: Feeds, out: Feeds | None, shapes: Shapes) -> dict[str, np.ndarray]:
        """Outputs for feeds that fit the inputs, while no other thread runs."""
