"""An executable as a value: kernel calls with their arguments, and the position of every tensor.

It is a compiler's result without code and weights: it prints as text, parses back and can be checked.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pliant.ir.graph import TensorType
from pliant.ir.symbolic import formula_text, is_symbolic

ARENA = ""
"""The arena's name among spaces, the only name that no tensor can have."""
ALIGNMENT = 64
"""The alignment of every tensor's offset in the arena, in bytes."""

_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True, slots=True)
class Formula:
    """An integer that depends on open sizes: `value` for the sizes at hand, `text` for others.

    The text consists of integers, names of sizes (in quotes unless they are identifiers), `+`, `-`, `*`,
    `//`, `min(a, b)` and `max(a, b)`.
    """

    text: str
    value: int

    def __post_init__(self) -> None:
        if any(sign in self.text for sign in "{}\r\n"):
            raise ValueError(f"the formula {self.text!r} has braces or breaks; write \\u007b in names.")

    def at(self, sizes: Mapping[str, int]) -> int:
        """Evaluate for these sizes. Raises ValueError for an invalid formula or unknown sizes."""
        try:
            return _evaluate(ast.parse(self.text, mode="eval").body, sizes)
        except (SyntaxError, RecursionError, ZeroDivisionError, MemoryError) as error:
            raise ValueError(f"{self.text!r} is not a formula of sizes: {error}.") from error


Number = int | Formula


def to_number(number: int) -> Number:
    """Convert a compiler's size to a Number."""
    return Formula(formula_text(number), number.value) if is_symbolic(number) else operator.index(number)


def concrete(number: Number) -> int:
    """Return a number's value for the sizes at hand."""
    return number.value if isinstance(number, Formula) else number


@dataclass(frozen=True, slots=True)
class Address:
    """Byte `offset` of the arena, or of an input, an output or a constant."""

    space: str
    offset: Number = 0


Scalar = Number | float | Address | None
Argument = Scalar | tuple[Scalar, ...]
"""Trailing zeros of an array are omitted."""


@dataclass(frozen=True, slots=True)
class ExecutableType:
    """A tensor's element type, by numpy's name, and its shape."""

    dtype: str
    shape: tuple[Number, ...]

    @property
    def concrete(self) -> TensorType:
        """The type for the sizes at hand."""
        return TensorType(self.dtype, tuple(map(concrete, self.shape)))


@dataclass(frozen=True, slots=True)
class Constant:
    """A part of the model that kernels read: unchanged (`type`), or `n_bytes` packed from `source`.

    `digest` is the SHA-256 of its bytes, if they were available.
    """

    name: str
    n_bytes: int
    type: ExecutableType | None = None
    source: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class ArenaTensor:
    """A tensor at byte `offset` of the arena, alive from call `first` to call `last`, both included."""

    name: str
    offset: int
    n_bytes: Number
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Alias:
    """A tensor that shares another tensor's bytes, or is stored in the caller's memory."""

    name: str
    address: Address


@dataclass(frozen=True, slots=True)
class KernelCall:
    """`kernel` over units 0..n_units-1, in chunks of `grain`, with its arguments by field.

    `reads` and `writes` are the tensors touched. With an `extent`, the call is limited to the available rows,
    whose number is in these fields. `op` and `label` are the node it came from.
    """

    kernel: str
    n_units: Number
    grain: Number
    scratch_bytes: Number
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    arguments: tuple[tuple[str, Argument], ...]
    extent: tuple[str, ...] | None = None
    op: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Executable:
    """Calls in order over one arena. `copies` are outputs copied after the calls, as (output, source).

    `sizes` are the open sizes at hand, by name; all formulas are of these and of `offset0`, `offset1`, ...,
    the positions of `tensors`, which are placed again for other sizes.
    """

    target: str
    n_threads: int
    inputs: tuple[tuple[str, ExecutableType], ...]
    outputs: tuple[tuple[str, ExecutableType], ...]
    constants: tuple[Constant, ...]
    arena_bytes: Number
    scratch_bytes: Number
    tensors: tuple[ArenaTensor, ...]
    aliases: tuple[Alias, ...]
    calls: tuple[KernelCall, ...]
    copies: tuple[tuple[str, Address], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()


def _evaluate(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=str(name)) | ast.Constant(value=str(name)):
            if name not in sizes:
                raise ValueError(f"no size is called {name!r}; there are {', '.join(sizes) or 'none'}.")
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_evaluate(left, sizes), _evaluate(right, sizes))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[a, b], keywords=[]):
            return (min if name == "min" else max)(_evaluate(a, sizes), _evaluate(b, sizes))
        case _:
            raise ValueError(f"{ast.unparse(node)!r} has no place in a formula of sizes.")
