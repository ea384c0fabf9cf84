"""Whole numbers that remember how they follow from open sizes.

Code that computes with sizes runs unchanged on a `SymbolicInt`, which stands for the size at hand. Each
comparison on the way is noted as a condition. Other sizes that meet all conditions would have taken the same
way, so that the numbers it made there are found by evaluating, not by running the code again. Where a number
leaves Python's arithmetic (an array's shape, a float, text, a hash), the condition is that it is this one.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from keyword import iskeyword
from math import prod
from typing import Any, TypeGuard, cast, final

import numpy as np

Term = tuple[int, ...]
"""A product of atoms, by their numbers in the trace, ascending."""
Polynomial = tuple[tuple[Term, int], ...]
"""Terms with their factors, none 0, in ascending order."""
Atom = str | tuple[str, Polynomial, Polynomial]
"""A symbol, or an operation on two polynomials: `//`, `min` or `max`."""

_ONE: Term = ()


@final
class Trace:
    """Symbols, and the conditions under which numbers made of them hold."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.conditions: dict[tuple[bool, Polynomial], bool] = {}
        """(is "equals 0", else "below 0", number): whether that is so."""
        self._numbers: dict[Atom, int] = {}

    def symbol(self, name: str, value: int) -> int:
        """A new open size, which is `value` at hand."""
        return self.made(value, (((self._number(name),), 1),))

    def polynomial(self, number: int) -> Polynomial:
        """That of a number; one of another trace is a constant here."""
        if is_symbolic(number) and number.trace is self:
            return number.polynomial
        value = plain(number)
        return ((_ONE, value),) if value else ()

    def replaced(self, number: Any, symbols: Sequence[int]) -> Any:
        """A polynomial of this trace's first symbols in others; what is no symbolic number is left."""
        if not is_symbolic(number):
            return number
        return sum(n * prod(symbols[i] for i in term) for term, n in number.polynomial)

    def made(self, value: int, polynomial: Polynomial) -> int:
        """The number that a polynomial is, `value` at hand."""
        if not polynomial or (len(polynomial) == 1 and polynomial[0][0] == _ONE):
            return value
        return cast(int, SymbolicInt(value, polynomial, self))

    def combined(self, operation: str, value: int, a: Polynomial, b: Polynomial) -> int:
        """Quotient, minimum or maximum of two numbers, `value` at hand."""
        if operation == "//":
            self.note(True, b, False)
        exact = _exact_quotient(a, b) if operation == "//" else None
        return self.made(value, (((self._number((operation, a, b)),), 1),) if exact is None else exact)

    def note(self, is_equality: bool, number: Polynomial, outcome: bool) -> bool:
        """Note that `number` is, or is not, 0 (or below 0); the outcome itself."""
        if any(term for term, _ in number):
            self.conditions[is_equality, number] = outcome
        return outcome

    def evaluator(self, symbols: Sequence[str], numbers: Iterable[int]) -> Callable[..., tuple[int, ...]]:
        """What gives `numbers` for values of `symbols`, in order."""
        return self._compiled(symbols, "({})", [_source(self.polynomial(n)) + "," for n in numbers])

    def checker(self, symbols: Sequence[str]) -> Callable[..., bool]:
        """What says for values of `symbols` whether all conditions noted so far are met."""
        parts = [
            f"(({_source(number)}) {'==' if is_equality else '<'} 0) is {outcome}"
            for (is_equality, number), outcome in self.conditions.items()
        ]
        return self._compiled(symbols, "{}", [" and ".join(parts) or "True"])

    def _compiled(self, symbols: Sequence[str], form: str, parts: Sequence[str]) -> Callable[..., Any]:
        known = set(symbols)
        lines = []
        for i, atom in enumerate(self.atoms):
            if isinstance(atom, str):
                if atom in known:
                    lines.append(f" a{i} = values[{symbols.index(atom)}]")
            elif self._symbols(atom) <= known:
                a, b = map(_source, atom[1:])
                # Of sizes that meet no condition a divisor may be 0.
                whole = f"({a}) // (({b}) or 1)" if atom[0] == "//" else f"{atom[0]}({a}, {b})"
                lines.append(f" a{i} = {whole}")
        body = "\n".join([*lines, f" return {form.format(' '.join(parts))}"])
        scope: dict[str, Any] = {}
        exec(f"def evaluate(*values):\n{body}\n", scope)  # numbers and names of our own only
        found: Callable[..., Any] = scope["evaluate"]
        return found

    def _symbols(self, atom: Atom) -> set[str]:
        if isinstance(atom, str):
            return {atom}
        return {
            s for side in atom[1:] for term, _ in side for i in term for s in self._symbols(self.atoms[i])
        }

    def _number(self, atom: Atom) -> int:
        if atom not in self._numbers:
            self._numbers[atom] = len(self.atoms)
            self.atoms.append(atom)
        return self._numbers[atom]


@final
class SymbolicInt:
    """An int that follows from the symbols of a trace by a polynomial; `value` at hand.

    It is an int to `isinstance` but not to C code, which would read the value without a condition.
    """

    __slots__ = ("polynomial", "trace", "value")

    def __init__(self, value: int, polynomial: Polynomial, trace: Trace) -> None:
        self.value, self.polynomial, self.trace = value, polynomial, trace

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __add__(self, other: Any) -> Any:
        return self._sum(other, 1, 1)

    def __sub__(self, other: Any) -> Any:
        return self._sum(other, 1, -1)

    def __rsub__(self, other: Any) -> Any:
        return self._sum(other, -1, 1)

    def __neg__(self) -> Any:
        return self._sum(0, -1, 1)

    def __mul__(self, other: Any) -> Any:
        if not _is_whole(other):
            return self._fixed() * other
        product: dict[Term, int] = {}
        for a, m in self.polynomial:
            for b, n in self.trace.polynomial(other):
                term = tuple(sorted(a + b))
                product[term] = product.get(term, 0) + m * n
        return self.trace.made(self.value * plain(other), _ordered(product))

    def __floordiv__(self, other: Any) -> Any:
        if not _is_whole(other):
            return self._fixed() // other
        return self._combined("//", self.value // plain(other), self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        if not _is_whole(other):
            return other // self._fixed()
        return self._combined("//", plain(other) // self.value, other, self)

    def __mod__(self, other: Any) -> Any:
        return self - other * (self // other) if _is_whole(other) else self._fixed() % other

    def __rmod__(self, other: Any) -> Any:
        return other - self * (other // self) if _is_whole(other) else other % self._fixed()

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __lshift__(self, other: int) -> Any:
        return self * (1 << other)

    def __rshift__(self, other: int) -> Any:
        return self // (1 << other)

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __pos__(self) -> Any:
        return self

    def __eq__(self, other: object) -> bool:
        if not _is_whole(other):
            return NotImplemented
        return self._is(True, self, other, self.value == plain(other))

    def __ne__(self, other: object) -> bool:
        return not self == other if _is_whole(other) else NotImplemented

    def __lt__(self, other: Any) -> bool:
        return self._is(False, self, other, self.value < plain(other)) if _is_whole(other) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return self._is(False, other, self, self.value > plain(other)) if _is_whole(other) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return not self > other if _is_whole(other) else NotImplemented

    def __ge__(self, other: Any) -> bool:
        return not self < other if _is_whole(other) else NotImplemented

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        return hash(self._fixed())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols of other libraries
            raise AttributeError(name)
        return getattr(self._fixed(), name)

    def _sum(self, other: Any, own: int, others: int) -> Any:
        if not _is_whole(other):
            return own * self._fixed() + others * other
        terms = {term: own * n for term, n in self.polynomial}
        for term, n in self.trace.polynomial(other):
            terms[term] = terms.get(term, 0) + others * n
        return self.trace.made(own * self.value + others * plain(other), _ordered(terms))

    def _combined(self, operation: str, value: int, a: Any, b: Any) -> int:
        return self.trace.combined(operation, value, self.trace.polynomial(a), self.trace.polynomial(b))

    def _is(self, is_equality: bool, a: Any, b: Any, outcome: bool) -> bool:
        """Note whether a - b is 0, or below 0."""
        return self.trace.note(is_equality, self.trace.polynomial(a - b), outcome)

    def _fixed(self) -> int:
        """The number itself, on the condition that it is this one."""
        self._is(True, self, self.value, True)
        return self.value

    __radd__, __rmul__ = __add__, __mul__


def _through(name: str) -> Callable[..., Any]:
    method = getattr(int, name)

    def through(self: SymbolicInt, *others: Any) -> Any:
        return method(self._fixed(), *others)

    return through


for _name in (
    *("__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__", "__rlshift__", "__rrshift__"),
    *(
        "__truediv__",
        "__rtruediv__",
        "__pow__",
        "__rpow__",
        "__invert__",
        "__int__",
        "__index__",
        "__float__",
    ),
    *("__round__", "__trunc__", "__floor__", "__ceil__", "__str__", "__repr__", "__format__"),
):
    setattr(SymbolicInt, _name, _through(_name))


def plain(number: Any) -> int:
    """The value at hand, without a condition: for what is computed anew for other sizes, or any would do."""
    return number.value if is_symbolic(number) else operator.index(number)


def at_least(number: int, least: int) -> int:
    """The larger of two numbers, without a condition."""
    return _extreme("max", number, least)


def at_most(number: int, most: int) -> int:
    """The smaller of two numbers, without a condition."""
    return _extreme("min", number, most)


def largest(numbers: Iterable[int]) -> int:
    """The largest of several numbers, or 0, without a condition."""
    found = 0
    met: set[object] = set()
    for number in numbers:
        if (known := canonical(number)) not in met:
            met.add(known)
            found = at_least(found, number)
    return found


def symbols_of(decisive: Iterable[int], name: str, values: Sequence[int]) -> Sequence[int]:
    """Each of `values` as a new symbol, `name` and its position, where one of `decisive` is symbolic."""
    for number in decisive:
        if is_symbolic(number):
            return [number.trace.symbol(f"{name}{i}", value) for i, value in enumerate(values)]
    return values


def is_symbolic(number: object) -> TypeGuard[SymbolicInt]:
    return type(number) is SymbolicInt


def canonical(value: object) -> object:
    """A value to compare by, whatever the open sizes are: polynomials in place of symbolic numbers."""
    if is_symbolic(value):
        return "symbolic", value.polynomial
    return tuple(map(canonical, value)) if isinstance(value, tuple) else value


def formula_text(number: SymbolicInt) -> str:
    """The number as a formula of symbols, as `ir/executable.Formula` reads it."""
    return _formula(number.polynomial, number.trace.atoms)


def size_array(sizes: Sequence[int]) -> np.ndarray:
    """Sizes as an array: of int64, or of objects where one is symbolic."""
    if not any(map(is_symbolic, sizes)):
        return np.array(sizes, np.int64)
    found = np.empty(len(sizes), object)
    found[:] = sizes
    return found


def _extreme(operation: str, a: int, b: int) -> int:
    value = (min if operation == "min" else max)(plain(a), plain(b))
    for number in (a, b):
        if is_symbolic(number):
            trace = number.trace
            return trace.combined(operation, value, trace.polynomial(a), trace.polynomial(b))
    return value


def _is_whole(number: object) -> bool:
    return isinstance(number, int | np.integer)


def _ordered(terms: Mapping[Term, int]) -> Polynomial:
    return tuple(sorted((term, n) for term, n in terms.items() if n))


def _exact_quotient(over: Polynomial, under: Polynomial) -> Polynomial | None:
    """over / under where `under` is one term that divides all of `over`."""
    if len(under) != 1:
        return None
    (divisor, k), found = under[0], {}
    for term, n in over:
        left = list(term)
        for atom in divisor:
            if atom not in left:
                return None
            left.remove(atom)
        if n % k:
            return None
        found[tuple(left)] = n // k
    return _ordered(found)


def _source(number: Polynomial) -> str:
    return " + ".join("*".join([str(n), *(f"a{i}" for i in term)]) for term, n in number) or "0"


def _formula(number: Polynomial, atoms: Sequence[Atom]) -> str:
    text = ""
    for term, n in number:
        factors = [_atom_text(atoms[i], atoms) for i in term]
        text += "+" if text and n > 0 else ""
        text += "*".join(factors if n == 1 and factors else [str(n), *factors])
    return text or "0"


def _atom_text(atom: Atom, atoms: Sequence[Atom]) -> str:
    if isinstance(atom, str):
        if atom.isascii() and atom.isidentifier() and not iskeyword(atom):
            return atom
        return ascii(atom).replace("{", r"\x7b").replace("}", r"\x7d")
    a, b = (_formula(side, atoms) for side in atom[1:])
    return f"(({a})//({b}))" if atom[0] == "//" else f"{atom[0]}({a},{b})"
