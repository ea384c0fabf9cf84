"""An executable as a value: kernel calls with their arguments, and the place of every tensor they name.

It is what a compiler made, without code and without weights: it prints, parses back and is judged.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pliant.ir.graph import TensorType
from pliant.ir.symbolic import formula_text, is_symbolic

ARENA = ""
"""The arena's name among spaces: the one name that no tensor can have."""
ALIGNMENT = 64
"""Of every tensor's offset into the arena, in bytes."""

_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True, slots=True)
class Formula:
    """A whole number that follows from open sizes: `value` at hand, by `text` for others.

    The text has whole numbers, names of sizes (those that are no identifiers in quotes), `+`, `-`, `*`, `//`,
    `min(a, b)` and `max(a, b)`.
    """

    text: str
    value: int

    def __post_init__(self) -> None:
        if any(sign in self.text for sign in "{}\r\n"):
            raise ValueError(f"the formula {self.text!r} has braces or breaks; write \\u007b in names.")

    def at(self, sizes: Mapping[str, int]) -> int:
        """The number for these sizes. Raises ValueError for what is no such formula, or has unknown sizes."""
        try:
            return _evaluated(ast.parse(self.text, mode="eval").body, sizes)
        except (SyntaxError, RecursionError, ZeroDivisionError, MemoryError) as error:
            raise ValueError(f"{self.text!r} is no formula of sizes: {error}.") from error


Number = int | Formula


def number_of(number: int) -> Number:
    """A size as a compiler has it."""
    return Formula(formula_text(number), number.value) if is_symbolic(number) else operator.index(number)


def at_hand(number: Number) -> int:
    """A number for the sizes at hand."""
    return number.value if isinstance(number, Formula) else number


@dataclass(frozen=True, slots=True)
class Address:
    """Byte `offset` of the arena, or of an input, an output or a constant."""

    space: str
    offset: Number = 0


Scalar = Number | float | Address | None
Argument = Scalar | tuple[Scalar, ...]
"""Of an array, trailing zeros are left out."""


@dataclass(frozen=True, slots=True)
class ExecutableType:
    """A tensor's element type, by numpy's name, and its shape."""

    dtype: str
    shape: tuple[Number, ...]

    @property
    def at_hand(self) -> TensorType:
        """For the sizes at hand."""
        return TensorType(self.dtype, tuple(map(at_hand, self.shape)))


@dataclass(frozen=True, slots=True)
class Constant:
    """What kernels read of the model: as it is (`type`), or `n_bytes` packed from `source`.

    `digest` is the SHA-256 of its bytes, where they were at hand.
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
    """A tensor whose bytes are those of another, or lie in the caller's memory."""

    name: str
    address: Address


@dataclass(frozen=True, slots=True)
class KernelCall:
    """`kernel` over units 0..n_units-1, handed out `grain` at a time, with its arguments by field.

    `reads` and `writes` are the tensors touched. With an `extent` the call is cut to the rows there are,
    whose number stands in these fields. `op` and `label` are the node it came from.
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
    """Calls in order over one arena. `copies` are outputs copied after them, as (output, from where).

    `sizes` are the open sizes at hand, by name; all formulas are of these and of `offset0`, `offset1`, ...,
    where `tensors` lie, which are placed anew for other sizes.
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


def _evaluated(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=str(name)) | ast.Constant(value=str(name)):
            if name not in sizes:
                raise ValueError(f"no size is called {name!r}; there are {', '.join(sizes) or 'none'}.")
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluated(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_evaluated(left, sizes), _evaluated(right, sizes))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[a, b], keywords=[]):
            return (min if name == "min" else max)(_evaluated(a, sizes), _evaluated(b, sizes))
        case _:
            raise ValueError(f"{ast.unparse(node)!r} has no place in a formula of sizes.")
