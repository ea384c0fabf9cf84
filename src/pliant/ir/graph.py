"""A model as a graph of operators over typed tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any, TypeVar, cast

import numpy as np

from pliant.errors import GraphError

D = TypeVar("D")
_REQUIRED = cast(Any, object())
Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | np.ndarray

# ONNX types that numpy lacks; ml_dtypes has them under the same names.
_EXTENDED = frozenset(
    (
        *("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("float4_e2m1fn", "int4", "uint4", "int2", "uint2"),
    )
)


@dataclass(frozen=True, slots=True)
class TensorType:
    """`dtype` by numpy's name (`float32`, `int64`, `bool`, `bfloat16`, ...), `shape` in plain numbers."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        return self.numpy.itemsize

    @property
    def numpy(self) -> np.dtype:
        return numpy_type(self.dtype)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def n_bytes(self) -> int:
        return self.size * self.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the row-major layout, in elements."""
        return tuple(prod(self.shape[i + 1 :]) for i in range(len(self.shape)))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@cache
def numpy_type(dtype: str) -> np.dtype:
    """Return numpy's type of that name, or that of ml_dtypes."""
    if dtype not in _EXTENDED:
        return np.dtype(dtype)
    import ml_dtypes  # 2.5 MB, for models that have such tensors

    found: np.dtype = np.dtype(getattr(ml_dtypes, dtype))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator: ONNX's names and meanings at `OPSET`, or one of pliant's own fused operators.

    An absent optional input, or an unused output, is "". Attributes are read by the getter of their kind.
    Each getter raises GraphError, naming node and attribute, for a value of another kind, and for a missing
    attribute without a `default`.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    name: str = ""

    @property
    def label(self) -> str:
        """Its name in messages and profiles, or its operator if it has no name."""
        return self.name or self.op

    def integer(self, name: str, default: D = _REQUIRED) -> int | D:
        """Return an integer attribute."""
        value = self.attributes.get(name, default)
        if isinstance(value, int) or (value is default and default is not _REQUIRED):
            return value
        raise self._wrong(name, "an integer")

    def integers(self, name: str, default: D = _REQUIRED) -> tuple[int, ...] | D:
        """Return an attribute that is a list of integers."""
        return self._list(name, default, int, "a list of integers")

    def real(self, name: str, default: D = _REQUIRED) -> float | D:
        """Return a number attribute; integers are converted to float."""
        value = self.attributes.get(name, default)
        if value is default and default is not _REQUIRED:
            return default
        if isinstance(value, int | float):
            return float(value)
        raise self._wrong(name, "a number")

    def reals(self, name: str, default: D = _REQUIRED) -> tuple[float, ...] | D:
        """Return an attribute that is a list of numbers."""
        return self._list(name, default, (int, float), "a list of numbers")

    def text(self, name: str, default: D = _REQUIRED) -> str | D:
        """Return a string attribute."""
        value = self.attributes.get(name, default)
        if isinstance(value, str) or (value is default and default is not _REQUIRED):
            return value
        raise self._wrong(name, "a string")

    def texts(self, name: str, default: D = _REQUIRED) -> tuple[str, ...] | D:
        """Return an attribute that is a list of strings."""
        return self._list(name, default, str, "a list of strings")

    def array(self, name: str, default: D = _REQUIRED) -> np.ndarray | D:
        """Return a tensor attribute."""
        value = self.attributes.get(name, default)
        if isinstance(value, np.ndarray) or (value is default and default is not _REQUIRED):
            return value
        raise self._wrong(name, "a tensor")

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an integer attribute as a flag: False if it is 0."""
        return bool(self.integer(name, default))

    def _list(self, name: str, default: D, kind: Any, wanted: str) -> tuple[Any, ...] | D:
        value = self.attributes.get(name, default)
        if value is default and default is not _REQUIRED:
            return default
        if isinstance(value, tuple) and all(isinstance(one, kind) for one in value):
            return value
        raise self._wrong(name, wanted)

    def _wrong(self, name: str, wanted: str) -> GraphError:
        where = f"node {self.name!r} ({self.op})"
        if name not in self.attributes:
            return GraphError(f"{where} lacks its attribute {name!r}, which must be {wanted}.")
        value = self.attributes[name]
        return GraphError(f"{where}: its attribute {name!r} is {_short(value)}, but must be {wanted}.")

    def __str__(self) -> str:
        shown = ", ".join(f"{k}={_short(v)}" for k, v in sorted(self.attributes.items()))
        op = f"{self.op} <{shown}>" if shown else self.op
        return f"{', '.join(self.outputs)} = {op} ({', '.join(self.inputs)})"


@dataclass(frozen=True, slots=True)
class Origin:
    """A node's origin in the model: a name to find it by, and its floating-point operations.

    For nodes fused from several, the name lists their operators; `flops` counts only products.
    """

    name: str
    flops: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Operators in data-flow order; every tensor has one producer and a static type.

    `types` holds every tensor's type, `constants` the values known before the run (possibly memory-mapped:
    read-only), `origins` the origins of nodes, by first output, if traced. Raises GraphError naming node and
    tensor on an inconsistency.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    name: str = "graph"
    origins: Mapping[str, Origin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {*self.inputs, *self.constants}
        for node in self.nodes:
            for x in node.inputs:
                if x and x not in known:
                    raise GraphError(f"node {node.label!r} reads {x!r}, which nothing before it makes.")
            for y in node.outputs:
                if y in known:
                    raise GraphError(f"{y!r} is made twice, last by node {node.label!r}.")
                if y:
                    known.add(y)
        missing = [x for x in self.outputs if x not in known]
        if missing:
            raise GraphError(f"outputs {missing} are made by no node.")
        untyped = sorted(known - set(self.types))
        if untyped:
            raise GraphError(f"tensors {untyped} have no type.")

    @property
    def producers(self) -> dict[str, Node]:
        """The node that produces each tensor, except inputs and constants."""
        return {y: node for node in self.nodes for y in node.outputs if y}

    @property
    def consumers(self) -> dict[str, tuple[Node, ...]]:
        """The nodes that read each tensor, in order."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for x in dict.fromkeys(node.inputs):
                if x:
                    found.setdefault(x, []).append(node)
        return {x: tuple(nodes) for x, nodes in found.items()}

    def __str__(self) -> str:
        def typed(x: str) -> str:
            return f"{self.types[x]} {x}"

        lines = [f"{self.name} ({', '.join(map(typed, self.inputs))})"]
        lines += [f"  {node}" for node in self.nodes]
        return "\n".join([*lines, f"  return {', '.join(map(typed, self.outputs))}", ""])


def _short(value: Attribute) -> str:
    return f"array{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)
