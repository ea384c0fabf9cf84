"""Integers that record how they depend on open sizes.

Code that computes with sizes runs unchanged on a `SymbolicInt`, which stands for the size at hand. Each
comparison is recorded as a condition. Other sizes that meet all conditions would have taken the same path, so
the resulting numbers can be found by evaluation instead of running the code again. If a number leaves
Python's arithmetic (an array's shape, a float, text, a hash), the condition is that it has this value.
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
    """Symbols, and the conditions under which numbers derived from them are valid."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.conditions: dict[tuple[bool, Polynomial], bool] = {}
        """(True for "equals 0", False for "below 0"; number): whether that holds."""
        self._numbers: dict[Atom, int] = {}

    def symbol(self, name: str, value: int) -> int:
        """Return a new open size with the current value `value`."""
        return self.make(value, (((self._number(name),), 1),))

    def polynomial(self, number: int) -> Polynomial:
        """Return a number's polynomial; a number of another trace is a constant here."""
        if is_symbolic(number) and number.trace is self:
            return number.polynomial
        value = plain_value(number)
        return ((_ONE, value),) if value else ()

    def replace_symbols(self, number: Any, symbols: Sequence[int]) -> Any:
        """Replace this trace's first symbols in a number's polynomial; return other values unchanged."""
        if not is_symbolic(number):
            return number
        return sum(n * prod(symbols[i] for i in term) for term, n in number.polynomial)

    def make(self, value: int, polynomial: Polynomial) -> int:
        """Return the number of a polynomial with the current value `value`."""
        if not polynomial or (len(polynomial) == 1 and polynomial[0][0] == _ONE):
            return value
        return cast(int, SymbolicInt(value, polynomial, self))

    def combine(self, operation: str, value: int, a: Polynomial, b: Polynomial) -> int:
        """Return the quotient, minimum or maximum of two numbers, with the current value `value`."""
        if operation == "//":
            self.note(True, b, False)
        exact = _exact_quotient(a, b) if operation == "//" else None
        return self.make(value, (((self._number((operation, a, b)),), 1),) if exact is None else exact)

    def note(self, is_equality: bool, number: Polynomial, outcome: bool) -> bool:
        """Record that `number` is, or is not, 0 (or below 0); return the outcome."""
        if any(term for term, _ in number):
            self.conditions[is_equality, number] = outcome
        return outcome

    def evaluator(self, symbols: Sequence[str], numbers: Iterable[int]) -> Callable[..., tuple[int, ...]]:
        """Return a function that computes `numbers` from values of `symbols`, in order."""
        return self._compiled(symbols, "({})", [_source(self.polynomial(n)) + "," for n in numbers])

    def checker(self, symbols: Sequence[str]) -> Callable[..., bool]:
        """Return a function that checks, for values of `symbols`, all conditions recorded so far."""
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
                # For sizes that meet no condition, a divisor may be 0.
                whole = f"({a}) // (({b}) or 1)" if atom[0] == "//" else f"{atom[0]}({a}, {b})"
                lines.append(f" a{i} = {whole}")
        body = "\n".join([*lines, f" return {form.format(' '.join(parts))}"])
        scope: dict[str, Any] = {}
        exec(f"def evaluate(*values):\n{body}\n", scope)  # only numbers and generated names
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
    """An int that is a polynomial in the symbols of a trace; `value` is its current value.

    It is an int to `isinstance` but not to C code, which would read the value without recording a condition.
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
        return self.trace.make(self.value * plain_value(other), _ordered(product))

    def __floordiv__(self, other: Any) -> Any:
        if not _is_whole(other):
            return self._fixed() // other
        return self._combined("//", self.value // plain_value(other), self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        if not _is_whole(other):
            return other // self._fixed()
        return self._combined("//", plain_value(other) // self.value, other, self)

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
        return self._is(True, self, other, self.value == plain_value(other))

    def __ne__(self, other: object) -> bool:
        return not self == other if _is_whole(other) else NotImplemented

    def __lt__(self, other: Any) -> bool:
        return (
            self._is(False, self, other, self.value < plain_value(other))
            if _is_whole(other)
            else NotImplemented
        )

    def __gt__(self, other: Any) -> bool:
        return (
            self._is(False, other, self, self.value > plain_value(other))
            if _is_whole(other)
            else NotImplemented
        )

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
        return self.trace.make(own * self.value + others * plain_value(other), _ordered(terms))

    def _combined(self, operation: str, value: int, a: Any, b: Any) -> int:
        return self.trace.combine(operation, value, self.trace.polynomial(a), self.trace.polynomial(b))

    def _is(self, is_equality: bool, a: Any, b: Any, outcome: bool) -> bool:
        """Record whether a - b is 0, or below 0."""
        return self.trace.note(is_equality, self.trace.polynomial(a - b), outcome)

    def _fixed(self) -> int:
        """Return the value, on the condition that the number equals it."""
        self._is(True, self, self.value, True)
        return self.value

    __radd__, __rmul__ = __add__, __mul__


def _delegate(name: str) -> Callable[..., Any]:
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
    setattr(SymbolicInt, _name, _delegate(_name))


def plain_value(number: Any) -> int:
    """The value without a condition: if it is computed again for other sizes, or any value would do."""
    return number.value if is_symbolic(number) else operator.index(number)


def at_least(number: int, least: int) -> int:
    """Return the larger of two numbers, without a condition."""
    return _extreme("max", number, least)


def at_most(number: int, most: int) -> int:
    """Return the smaller of two numbers, without a condition."""
    return _extreme("min", number, most)


def largest(numbers: Iterable[int]) -> int:
    """Return the largest of several numbers, or 0, without a condition."""
    found = 0
    met: set[object] = set()
    for number in numbers:
        if (known := canonical(number)) not in met:
            met.add(known)
            found = at_least(found, number)
    return found


def symbols_of(decisive: Iterable[int], name: str, values: Sequence[int]) -> Sequence[int]:
    """Return `values` as new symbols, named `name` plus position, if one of `decisive` is symbolic."""
    for number in decisive:
        if is_symbolic(number):
            return [number.trace.symbol(f"{name}{i}", value) for i, value in enumerate(values)]
    return values


def is_symbolic(number: object) -> TypeGuard[SymbolicInt]:
    return type(number) is SymbolicInt


def canonical(value: object) -> object:
    """Return a value for comparisons under all open sizes: symbolic numbers become polynomials."""
    if is_symbolic(value):
        return "symbolic", value.polynomial
    return tuple(map(canonical, value)) if isinstance(value, tuple) else value


def formula_text(number: SymbolicInt) -> str:
    """Return the number as a formula of symbols, in the syntax of `ir/executable.Formula`."""
    return _formula(number.polynomial, number.trace.atoms)


def size_array(sizes: Sequence[int]) -> np.ndarray:
    """Return sizes as an array: of int64, or of objects if one is symbolic."""
    if not any(map(is_symbolic, sizes)):
        return np.array(sizes, np.int64)
    found = np.empty(len(sizes), object)
    found[:] = sizes
    return found


def _extreme(operation: str, a: int, b: int) -> int:
    value = (min if operation == "min" else max)(plain_value(a), plain_value(b))
    for number in (a, b):
        if is_symbolic(number):
            trace = number.trace
            return trace.combine(operation, value, trace.polynomial(a), trace.polynomial(b))
    return value


def _is_whole(number: object) -> bool:
    return isinstance(number, int | np.integer)


def _ordered(terms: Mapping[Term, int]) -> Polynomial:
    return tuple(sorted((term, n) for term, n in terms.items() if n))


def _exact_quotient(over: Polynomial, under: Polynomial) -> Polynomial | None:
    """Return over / under if `under` is one term that divides all of `over`."""
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
