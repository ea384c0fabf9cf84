"""Tensors of a model during binding: types, known values, and the nodes that make them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import final

import numpy as np

from pliant.errors import GraphError, MissingValueError
from pliant.ir.graph import Graph, Node, TensorType

MAX_VALUE_ELEMENTS = 4096
"""Longer inputs are never bound by value, because each new value needs another compilation. Values computed
from longer tensors or constants are not bound either: they are the model's computation, not arithmetic on
shapes.
"""


@final
class KnownValues:
    """The results of a walk over a model so far; no tensor has more than `max_bytes`.

    It implements onnx_adapt.AdapterContext. New names are numbered by `numbers`.
    """

    def __init__(self, max_bytes: int, numbers: Iterator[object] | None = None) -> None:
        self.types: dict[str, TensorType] = {}
        self.values: dict[str, np.ndarray] = {}
        self._max_bytes = max_bytes
        self._nodes: list[Node] = []
        self._makers: dict[str, Node] = {}
        self._count = count() if numbers is None else numbers

    def type(self, tensor: str) -> TensorType:
        return self.types[tensor]

    def value(self, tensor: str) -> np.ndarray | None:
        return self.values.get(tensor)

    def constant(self, near: str, value: np.ndarray) -> str:
        name = self.fresh(near)
        self.set_value(name, np.asarray(value))
        return name

    def tensor(self, near: str, type_: TensorType) -> str:
        name = self.fresh(near)
        self.types[name] = type_
        return name

    def fresh(self, near: str) -> str:
        """A name made from `near` that no tensor has."""
        return next(name for i in self._count if (name := f"{near}#{i}") not in self.types)

    def set_value(self, name: str, value: np.ndarray) -> None:
        """Record that tensor `name` has `value`, which becomes read-only."""
        value.flags.writeable = False
        self.values[name] = value
        self.types[name] = TensorType(str(value.dtype), value.shape)

    def keep(self, nodes: Iterable[Node]) -> None:
        """Add nodes to the graph; the caller adds the types of their outputs."""
        for node in nodes:
            self._nodes.append(node)
            self._makers |= {y: node for y in node.outputs if y}

    def rename(self, inner: str, outer: str) -> None:
        """Give a known tensor a second name."""
        if inner in self.values:
            self.set_value(outer, self.values[inner])
            return
        self.types[outer] = self.types[inner]
        self.keep([Node("Identity", (inner,), (outer,), {}, outer)])

    def check_fits(self, name: str, type_: TensorType) -> None:
        """Raise GraphError for a tensor larger than the limit."""
        if type_.n_bytes > self._max_bytes:
            raise GraphError(f"tensor {name!r} would be {type_}: {type_.n_bytes} bytes.")

    def find_unknown(self, wanted: Iterable[str]) -> list[str]:
        """Those of some tensors whose values are not known."""
        return [x for x in wanted if x and x not in self.values]

    def check_values(self, unknown: Sequence[str], inputs: Collection[str], where: str) -> None:
        """Raise MissingValueError if tensors that determine a shape are computed by small arithmetic from
        `inputs`.
        """
        sources = self._sources(unknown)
        if sources is not None and sources <= set(inputs):
            raise MissingValueError(
                f"{where} can be compiled only once the value of {sorted(unknown)} is known, which follows "
                f"from the inputs {sorted(sources)}.",
                frozenset(sources),
            )

    def _sources(self, tensors: Sequence[str]) -> set[str] | None:
        """The inputs from which tensors are computed; None if a long tensor or constant is involved."""
        found, queue, seen = set(), list(tensors), set()
        while queue:
            x = queue.pop()
            if not x or x in seen:
                continue
            seen.add(x)
            if self.types[x].size > MAX_VALUE_ELEMENTS:
                return None
            if x in self._makers:
                queue += self._makers[x].inputs
            elif x not in self.values:
                found.add(x)
        return found

    @property
    def made(self) -> Mapping[str, Node]:
        """The tensors of the graph, with the node that makes each."""
        return self._makers

    def graph(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """A graph of the nodes kept, with the constants that they read."""
        made = {y for node in self._nodes for y in node.outputs}
        read = {x for node in self._nodes for x in node.inputs} | set(outputs)
        constants = {x: a for x, a in self.values.items() if x in read and x not in made and x not in inputs}
        kept = made | set(constants) | set(inputs)
        return Graph(
            nodes=tuple(self._nodes),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            types={x: t for x, t in self.types.items() if x in kept},
            constants=constants,
            name=name,
        )
