"""Inputs and outputs for users: a name, a type, dimensions that may be open."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pliant.errors import InputError
from pliant.ir.graph import TensorType

_ONNX_NAMES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: a dimension is a number, a symbol's name, or None; `dims` is None for any rank.

    `name`, `type` and `shape` match those of onnxruntime's `NodeArg`. The `element` of a sequence is its
    elements' port; that of an optional value is its content's port, a tensor or a sequence. Neither has
    dimensions.
    """

    name: str
    dtype: str
    dims: tuple[int | str | None, ...] | None
    element: "Port | None" = None
    is_optional: bool = False

    def __str__(self) -> str:
        if self.element is not None:
            return f"{self._holder}({self.element})"
        shape = "..." if self.dims is None else ",".join("?" if d is None else str(d) for d in self.dims)
        return f"{self.dtype}[{shape}]"

    @property
    def is_static(self) -> bool:
        return self.dims is not None and all(isinstance(d, int) for d in self.dims)

    @property
    def type(self) -> str:
        """ONNX's name of the type: `tensor(float)`, `seq(tensor(float))`."""
        if self.element is not None:
            return f"{self._holder}({self.element.type})"
        return f"tensor({_ONNX_NAMES.get(self.dtype, self.dtype.replace('_', ''))})"

    @property
    def shape(self) -> list[int | str | None] | None:
        """The dimensions as a list."""
        return None if self.dims is None else list(self.dims)

    @property
    def _holder(self) -> str:
        return "optional" if self.is_optional else "seq"

    def elements(self, value: Any) -> "Iterator[tuple[Port, Any]]":
        """Yield the elements of a sequence or optional value, each with the port that it must match."""
        assert self.element is not None
        if not self.is_optional:
            yield from ((replace(self.element, name=f"{self.name}[{i}]"), x) for i, x in enumerate(value))
        elif value is not None:
            yield self.element, value


def require_tensors(ports: Iterable[Port], asked: str) -> None:
    """Raise InputError naming the first port that is a sequence or an optional value."""
    for port in ports:
        if port.element is not None:
            raise InputError(
                f"{asked} takes tensors only, but {port.name!r} is {port}: call `run` of a session in Python."
            )


def static_port(name: str, type_: TensorType) -> Port:
    """Return the port of a tensor with a known shape."""
    return Port(name, type_.dtype, type_.shape)
