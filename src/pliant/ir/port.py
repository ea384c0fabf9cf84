"""Inputs and outputs as a user sees them: a name, a type, dimensions that may be open."""

from dataclasses import dataclass

from pliant.ir.graph import TensorType

_ONNX_NAMES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: a dimension is a number, a symbol's name, or None; `dims` is None for any rank.

    `name`, `type` and `shape` read as those of onnxruntime's `NodeArg`.
    """

    name: str
    dtype: str
    dims: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        shape = "..." if self.dims is None else ",".join("?" if d is None else str(d) for d in self.dims)
        return f"{self.dtype}[{shape}]"

    @property
    def is_static(self) -> bool:
        return self.dims is not None and all(isinstance(d, int) for d in self.dims)

    @property
    def type(self) -> str:
        """ONNX's name of the type: `tensor(float)`."""
        return f"tensor({_ONNX_NAMES.get(self.dtype, self.dtype.replace('_', ''))})"

    @property
    def shape(self) -> list[int | str | None] | None:
        """The dimensions as a list."""
        return None if self.dims is None else list(self.dims)


def static_port(name: str, type_: TensorType) -> Port:
    """The port of a tensor whose shape is known."""
    return Port(name, type_.dtype, type_.shape)
