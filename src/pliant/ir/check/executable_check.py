"""Check an executable that was read from text: what is wrong with which of its parts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from pliant.ir.executable import (
    ALIGNMENT,
    ARENA,
    Address,
    ArenaTensor,
    Argument,
    Executable,
    Formula,
    KernelCall,
    Scalar,
    concrete,
)
from pliant.ir.text.executable_text import PartKind


@dataclass(frozen=True, slots=True)
class ExecutableFault:
    """What is wrong with one part, identified by its kind and its number within that kind."""

    kind: PartKind
    number: int
    reason: str


def executable_faults(executable: Executable) -> Iterator[ExecutableFault]:
    """Yield what would make a run incorrect, for the sizes at hand; nothing for a valid executable.

    Tensors of the arena that live at the same time share no byte; each is aligned, within the arena, and
    lives for all calls that touch it. Each tensor that a call reads is written before, or is an input or a
    constant. Each address among the arguments is within one of the call's tensors, a constant, an input or an
    output. Each output is written. Formulas evaluate to the numbers beside them.
    """
    for arena_fault in arena_faults(executable.tensors, concrete(executable.arena_bytes)):
        yield ExecutableFault("tensor", arena_fault.tensor, arena_fault.reason)
    spaces = _Placement(executable)
    for name in spaces.names_given_twice:
        yield ExecutableFault("head", 0, f"two tensors are called {name}.")
    for i, alias in enumerate(executable.aliases):
        for reason in spaces.check_address(alias.address):
            yield ExecutableFault("alias", i, f"{alias.name}: {reason}")
    for i, call in enumerate(executable.calls):
        for reason in spaces.check_call(i, call):
            yield ExecutableFault("call", i, reason)
    for i, (y, address) in enumerate(executable.copies):
        for reason in spaces.check_copy(y, address, len(executable.calls)):
            yield ExecutableFault("copy", i, reason)
    for i, (y, type_) in enumerate(executable.outputs):
        if type_.concrete.n_bytes and y not in spaces.written:
            yield ExecutableFault("output", i, f"no call writes {y}, and nothing is copied there.")
    yield from _wrong_formulas(executable)


@dataclass(frozen=True, slots=True)
class ArenaFault:
    """What is wrong with the position of a tensor, identified by its number."""

    tensor: int
    reason: str


def arena_faults(tensors: Sequence[ArenaTensor], arena_bytes: int) -> Iterator[ArenaFault]:
    """Yield tensors that are misaligned or exceed the arena, and pairs that share bytes while both live."""
    alive: list[ArenaTensor] = []
    for i, tensor in sorted(enumerate(tensors), key=lambda pair: pair[1].first):
        alive = [other for other in alive if other.last >= tensor.first]
        end = tensor.offset + concrete(tensor.n_bytes)
        if tensor.offset % ALIGNMENT:
            yield ArenaFault(i, f"{tensor.name} begins at byte {tensor.offset}, no multiple of {ALIGNMENT}.")
        if tensor.offset < 0 or end > arena_bytes:
            yield ArenaFault(i, f"{tensor.name} ends at byte {end} of an arena of {arena_bytes}.")
        for other in alive:
            if other.offset < end and tensor.offset < other.offset + concrete(other.n_bytes):
                yield ArenaFault(
                    i, f"{tensor.name} and {other.name} share bytes of the arena at call {tensor.first}."
                )
        alive.append(tensor)


@final
class _Placement:
    """Where tensors are stored, and what has been written so far."""

    def __init__(self, executable: Executable) -> None:
        ports = (*executable.inputs, *executable.outputs)
        self.sizes = {name: type_.concrete.n_bytes for name, type_ in ports}
        self.sizes |= {constant.name: constant.n_bytes for constant in executable.constants}
        self.arena = {t.name: t for t in executable.tensors}
        self.given = {name for name, _ in executable.inputs} | {c.name for c in executable.constants}
        self.written: set[str] = set()
        """Spaces, and tensors of the arena."""
        self._places: dict[str, Address] = {name: Address(name) for name in self.sizes}
        self._places |= {t.name: Address(ARENA, t.offset) for t in executable.tensors}
        self._places |= {alias.name: alias.address for alias in executable.aliases}
        own = (executable.constants, executable.tensors, executable.aliases)
        names = Counter([part.name for parts in own for part in parts] + [x for x, _ in executable.inputs])
        self.names_given_twice = [name for name, n in names.items() if n > 1]

    def check_address(self, address: Address) -> Iterator[str]:
        """Yield why an address is in no space, or beyond its end."""
        if address.space == ARENA:
            return
        if address.space not in self.sizes:
            yield f"{address.space!r} is not an input, output or constant."
        elif not 0 <= concrete(address.offset) <= self.sizes[address.space]:
            size = self.sizes[address.space]
            yield f"byte {concrete(address.offset)} of {address.space} is outside its {size} bytes."

    def check_call(self, number: int, call: KernelCall) -> Iterator[str]:
        """Yield what is wrong with a call, and mark what it writes as written."""
        for x in call.reads:
            yield from self._check_read(number, x)
        touched = (*call.reads, *call.writes)
        roots = [root for x in touched if (root := self._root(x, number)) is not None]
        for x in call.writes:
            yield from self._check_placed(number, x)
        for name, value in call.arguments:
            for address in _addresses(value):
                if address.space == ARENA and not any(_holds(root, address) for root in roots):
                    yield f"{name} is byte {concrete(address.offset)} of the arena, in none of its tensors."
                yield from (f"{name}: {reason}" for reason in self.check_address(address))
        for x in call.writes:
            root = self._root(x, number)
            place = self._places.get(x)
            self.written |= {root.name} if root is not None else {place.space} if place is not None else set()

    def check_copy(self, y: str, address: Address, n_calls: int) -> Iterator[str]:
        """Yield what is wrong with a copy after the last call."""
        self.written.add(y)
        yield from self.check_address(address)
        if address.space not in (ARENA, *self.given) and address.space not in self.written:
            yield f"{address.space} is copied, but no call wrote it."
        roots = [t for t in self.arena.values() if t.last >= n_calls and _holds(t, address)]
        if address.space == ARENA and not any(t.name in self.written for t in roots):
            yield f"byte {concrete(address.offset)} of the arena is copied, which holds no tensor to the end."

    def _check_read(self, number: int, x: str) -> Iterator[str]:
        yield from self._check_placed(number, x)
        place, root = self._places.get(x), self._root(x, number)
        is_made = place is None or place.space in (ARENA, *self.given, *self.written)
        if not is_made or (root is not None and root.name not in self.written):
            yield f"it reads {x}, which no call before it wrote."

    def _check_placed(self, number: int, x: str) -> Iterator[str]:
        place = self._places.get(x)
        if place is None:
            yield f"{x!r} has no place."
        elif place.space == ARENA and self._root(x, number) is None:
            yield f"{x}, at byte {concrete(place.offset)} of the arena, lies in no tensor that lives then."

    def _root(self, x: str, number: int) -> ArenaTensor | None:
        """Return the tensor of the arena that contains `x` and lives at a call."""
        place = self._places.get(x)
        if place is None or place.space != ARENA:
            return None
        own = self.arena.get(x)
        candidates = self.arena.values() if own is None else (own,)
        living = [t for t in candidates if t.first <= number <= t.last and _holds(t, place)]
        # If an address is the end of one tensor and the start of another, take the latter.
        return max(living, key=lambda t: t.offset, default=None)


def _holds(tensor: ArenaTensor, address: Address) -> bool:
    """Return whether a tensor contains an address, including its end: an empty part may start there."""
    return 0 <= concrete(address.offset) - tensor.offset <= concrete(tensor.n_bytes)


def _addresses(value: Argument) -> Iterator[Address]:
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, Address):
            yield one


def _wrong_formulas(executable: Executable) -> Iterator[ExecutableFault]:
    offsets = {f"offset{i}": tensor.offset for i, tensor in enumerate(executable.tensors)}
    sizes = {**dict(executable.sizes), **offsets}
    for kind, number, formula in _formulas(executable):
        for reason in _difference(formula, sizes):
            yield ExecutableFault(kind, number, reason)


def _difference(formula: Formula, sizes: Mapping[str, int]) -> Iterator[str]:
    try:
        found = formula.at(sizes)
    except ValueError as error:
        yield str(error)
        return
    if found != formula.value:
        yield f"{formula.text} is {found} for these sizes, not {formula.value}."


def _formulas(executable: Executable) -> Iterator[tuple[PartKind, int, Formula]]:
    numbers: list[tuple[PartKind, int, Iterable[object]]] = [
        ("arena", 0, (executable.arena_bytes, executable.scratch_bytes)),
        *(("input", i, t.shape) for i, (_, t) in enumerate(executable.inputs)),
        *(("output", i, t.shape) for i, (_, t) in enumerate(executable.outputs)),
        *(("tensor", i, (t.n_bytes,)) for i, t in enumerate(executable.tensors)),
        *(("alias", i, (alias.address.offset,)) for i, alias in enumerate(executable.aliases)),
        *(("copy", i, (address.offset,)) for i, (_, address) in enumerate(executable.copies)),
    ]
    for i, call in enumerate(executable.calls):
        numbers.append(("call", i, (call.n_units, call.grain, call.scratch_bytes)))
        for _, value in call.arguments:
            scalars: tuple[Scalar, ...] = value if isinstance(value, tuple) else (value,)
            numbers.append(("call", i, [s.offset if isinstance(s, Address) else s for s in scalars]))
    for kind, at, parts in numbers:
        for part in parts:
            if isinstance(part, Formula):
                yield kind, at, part
