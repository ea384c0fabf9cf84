"""Element-wise expressions as trees with a text form; one pass over memory computes an expression.

    (mul:float32 x0:float32 (sigmoid:float32 (mul:float32 x0:float32 1.702:float32)))

A leaf is an input, `x<number>:<dtype>`, or a constant, `<number>:<dtype>`; an inner node names an operation
of kernels/emit/operations.py and the dtype of its result. Equal subtrees are computed once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pliant.errors import KernelError
from pliant.kernels.emit.dtypes import DTYPES, Dtype

ConstantValue = int | float

INPUT, CONSTANT = "x", "const"


@dataclass(frozen=True, slots=True)
class Expr:
    """An operation on expressions, or a leaf: `value` is an input's number or a constant."""

    op: str
    dtype: str
    args: tuple["Expr", ...] = ()
    value: ConstantValue = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise KernelError(f"{self.op} of {self.dtype}: kernels exist for {', '.join(DTYPES)}.")

    @property
    def row(self) -> Dtype:
        return DTYPES[self.dtype]

    def __str__(self) -> str:
        if self.op == INPUT:
            return f"x{self.value}:{self.dtype}"
        if self.op == CONSTANT:
            return f"{self.value!r}:{self.dtype}"
        return f"({self.op}:{self.dtype} {' '.join(map(str, self.args))})"

    def __add__(self, other: "Expr | ConstantValue") -> "Expr":
        return self.with_("add", other)

    def __sub__(self, other: "Expr | ConstantValue") -> "Expr":
        return self.with_("sub", other)

    def __mul__(self, other: "Expr | ConstantValue") -> "Expr":
        return self.with_("mul", other)

    def __truediv__(self, other: "Expr | ConstantValue") -> "Expr":
        return self.with_("div", other)

    def __neg__(self) -> "Expr":
        return self.to("neg")

    def with_(self, op: str, other: "Expr | ConstantValue") -> "Expr":
        """A binary operation on two operands of one dtype; a number becomes a constant of it."""
        return Expr(op, self.dtype, (self, self.like(other)))

    def compare(self, op: str, other: "Expr | ConstantValue") -> "Expr":
        """`eq lt le gt ge` as a bool."""
        return Expr(op, "bool", (self, self.like(other)))

    def to(self, op: str) -> "Expr":
        """A unary operation that keeps the dtype."""
        return Expr(op, self.dtype, (self,))

    def like(self, other: "Expr | ConstantValue") -> "Expr":
        return other if isinstance(other, Expr) else constant(other, self.dtype)

    def cast(self, dtype: str) -> "Expr":
        return self if dtype == self.dtype else Expr("cast", dtype, (self,))


def leaf(number: int, dtype: str) -> Expr:
    """Input `number`."""
    return Expr(INPUT, dtype, (), number)


def constant(number: ConstantValue, dtype: str) -> Expr:
    """A constant, as a float or an integer by its dtype."""
    return Expr(CONSTANT, dtype, (), float(number) if DTYPES[dtype].kind == "float" else int(number))


def choose(condition: Expr, a: Expr, b: Expr | ConstantValue) -> Expr:
    """a where the bool holds, else b."""
    return Expr("where", a.dtype, (condition, a, a.like(b)))


def inputs(tree: Expr) -> dict[int, str]:
    """The dtypes of the inputs that a tree reads, by number, in increasing order."""
    found: dict[int, str] = {}

    def visit(node: Expr) -> None:
        if node.op == INPUT:
            found[int(node.value)] = node.dtype
        for child in node.args:
            visit(child)

    visit(tree)
    return dict(sorted(found.items()))


def size(tree: Expr) -> int:
    """The number of operations in the text."""
    return bool(tree.args) + sum(map(size, tree.args))


def replace_inputs(tree: Expr, by: Mapping[int, Expr]) -> Expr:
    """The tree with expressions in place of some of its inputs."""
    if tree.op == INPUT:
        return by.get(int(tree.value), tree)
    if not tree.args:
        return tree
    return Expr(tree.op, tree.dtype, tuple(replace_inputs(a, by) for a in tree.args), tree.value)


def parse(text: str) -> Expr:
    """Parse the text form of a tree. Raises KernelError if the text is not an expression."""
    words = text.replace("(", " ( ").replace(")", " ) ").split()
    tree, rest = _parse(words, text)
    if rest:
        raise _error(text)
    return tree


def _parse(words: list[str], text: str) -> tuple[Expr, list[str]]:
    if not words:
        raise _error(text)
    if words[0] != "(":
        return _leaf(words[0], text), words[1:]
    op, _, dtype = words[1].partition(":") if len(words) > 1 else ("", "", "")
    args, rest = [], words[2:]
    while rest and rest[0] != ")":
        arg, rest = _parse(rest, text)
        args.append(arg)
    if not rest or not args:
        raise _error(text)
    return Expr(op, dtype, tuple(args)), rest[1:]


def _leaf(word: str, text: str) -> Expr:
    number, _, dtype = word.partition(":")
    if dtype not in DTYPES:
        raise _error(text)
    read: Callable[[str], ConstantValue] = float if DTYPES[dtype].kind == "float" else int
    try:
        return leaf(int(number[1:]), dtype) if number.startswith("x") else constant(read(number), dtype)
    except ValueError:
        raise _error(text) from None


def _error(text: str) -> KernelError:
    return KernelError(f"{text!r} is no expression such as '(add:float32 x0:float32 1.0:float32)'.")
