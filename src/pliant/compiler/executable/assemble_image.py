"""Place every tensor of a lowered graph: the image that sessions load and ahead-of-time compilation
writes.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pliant.arrays import Int64
from pliant.compiler.executable.call import Call, LoweredNode, PackedConstant, Ref, Target, TensorAlias
from pliant.compiler.executable.place_tensors import Lifetime, place_tensors
from pliant.errors import GraphError
from pliant.ir.executable import ARENA
from pliant.ir.graph import Graph, TensorType
from pliant.ir.symbolic import largest, symbols_of
from pliant.kernels.runtime.walker import UNIT_BITS

OFFSET = "offset"
"""The prefix of the symbols of tensors' arena offsets, followed by the index in `Image.tensors`."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorLocation:
    """Where a tensor's bytes are: `offset` into the arena, or into an input, output or constant."""

    space: str  # ARENA, or the name of an input, an output, a constant or a packed constant
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """Calls in order, and the place of every tensor they name.

    `inputs` and `outputs` are the caller's arrays; `copies` are outputs that are also an input, a
    constant or another output, as (output, source): copied after the calls. `constants` are read unchanged,
    `packed` are made once. All other tensors are in the arena of `arena_bytes`: `tensors`, with their
    lifetimes in calls.
    """

    calls: tuple[Call, ...]
    places: Mapping[str, TensorLocation]
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    copies: tuple[tuple[str, str], ...]
    constants: Mapping[str, np.ndarray]
    packed: Mapping[str, PackedConstant]
    arena_bytes: int
    target: Target
    tensors: tuple[Lifetime, ...] = ()

    @property
    def scratch_bytes(self) -> int:
        """The scratch bytes that one thread needs."""
        return largest(call.scratch_bytes for call in self.calls)

    def shares(self, lengths: Sequence[int]) -> Int64[np.ndarray, "calls 2"]:
        """Units and grain of every call for texts of `lengths` rows, at most as many as the image was lowered
        for.
        """
        shares = [
            (call.n_units, call.grain) if call.extent is None else call.extent.share(lengths)
            for call in self.calls
        ]
        return np.array(shares, np.int64).reshape(-1, 2)

    def may_replace(self, output: str, x: str) -> bool:
        """Whether `output` may be written into the memory of input `x`: no later call reads x."""
        written = [i for i, call in enumerate(self.calls) if self._touches(call.writes, output)]
        read = [i for i, call in enumerate(self.calls) if self._touches(call.reads, x)]
        return not self.copies and max(read, default=-1) < min(written, default=0)

    def _touches(self, tensors: Sequence[str], space: str) -> bool:
        return any(self.places[t].space == space for t in tensors)


def assemble(graph: Graph, lowered: Sequence[LoweredNode], target: Target) -> Image:
    """Place the tensors of a graph, lowered node by node, by lifetime (FluidML, Algorithm 4).

    Raises GraphError if a tensor has a name that a lowering needs, or a node has too many work units.
    """
    lowered = _share_conversions(lowered)
    calls = tuple(call for part in lowered for call in part.calls)
    packed = {name: p for part in lowered for name, p in part.packed.items()}
    sizes = _temporaries(lowered)
    _check_names(graph, [*packed, *sizes])
    _check_units(calls)
    roots = _roots(lowered)
    places: dict[str, TensorLocation] = {
        name: TensorLocation(name) for name in (*graph.inputs, *graph.constants, *packed)
    }
    copies = []
    for y in graph.outputs:
        root, offset = roots.get(y, (y, 0))
        whole = offset == 0 and root in graph.types and graph.types[root].n_bytes == graph.types[y].n_bytes
        if root in places or not whole:
            copies.append((y, y))
        else:
            places[root] = TensorLocation(y)
    sizes |= {x: t.n_bytes for x, t in graph.types.items()}
    lives = _lifetimes(calls, roots, [source for _, source in copies])
    _merge(calls, roots, sizes, places, lives)
    moving = [x for x in lives if x not in places]
    tensors = tuple(Lifetime(sizes[x], *lives[x]) for x in moving)
    placed = place_tensors(tensors)
    # Tensors of open sizes are placed anew for other sizes, so numbers that depend on offsets are symbolic
    # too.
    offsets = symbols_of((t.n_bytes for t in tensors), OFFSET, placed.offsets)
    places |= {x: TensorLocation(ARENA, at) for x, at in zip(moving, offsets, strict=True)}
    for x, (root, offset) in roots.items():
        if root in places:
            places.setdefault(x, TensorLocation(places[root].space, places[root].offset + offset))
    read = {places[x].space for call in calls for x in call.reads} | {
        places[source].space for _, source in copies if source in places
    }
    return Image(
        calls=calls,
        places=places,
        inputs={x: graph.types[x] for x in graph.inputs},
        outputs={y: graph.types[y] for y in graph.outputs},
        copies=tuple(copies),
        constants={x: a for x, a in graph.constants.items() if x in read},
        packed=packed,
        arena_bytes=placed.n_bytes,
        target=target,
        tensors=tensors,
    )


def _share_conversions(lowered: Sequence[LoweredNode]) -> list[LoweredNode]:
    """Let nodes share what is the same in each: a tensor that one call converts to a temporary."""
    made: dict[Hashable, str] = {}
    found = []
    for part in lowered:
        calls, aliases, temporaries = [], [*part.aliases], dict(part.temporaries)
        for call in part.calls:
            known = made.setdefault(_content(call), call.writes[0]) if call.is_shared else call.writes[0]
            if known == call.writes[0]:
                calls.append(call)
            else:
                aliases.append(TensorAlias(call.writes[0], known))
                del temporaries[call.writes[0]]
        found.append(replace(part, calls=tuple(calls), aliases=tuple(aliases), temporaries=temporaries))
    return found


def _content(call: Call) -> Hashable:
    """All that determines what a call writes, and for how many rows."""
    fields = {name: value for name, value in call.fields.items() if value != Ref(call.writes[0])}
    rows = None if call.extent is None else call.extent.fields
    return call.kernel, call.layout, frozenset(fields.items()), call.reads, call.n_units, call.grain, rows


def _check_names(graph: Graph, made: Sequence[str]) -> None:
    """Raise GraphError if a tensor of the graph has the name of a lowering's temporary."""
    taken = sorted(set(made) & set(graph.types))
    if taken:
        raise GraphError(
            f"tensors {taken} have names that their makers' kernels need; rename them in the model."
        )


def _check_units(calls: Sequence[Call]) -> None:
    """Raise GraphError naming the first node with more work units than the pool supports."""
    for call in calls:
        if call.n_units + call.grain >= 1 << UNIT_BITS:
            raise GraphError(
                f"node {call.label!r} has {call.n_units} parts of work; at most {1 << UNIT_BITS} are counted."
            )


def _roots(lowered: Sequence[LoweredNode]) -> dict[str, tuple[str, int]]:
    """The tensor whose memory each alias shares, and the offset in it."""
    roots: dict[str, tuple[str, int]] = {}
    for part in lowered:
        for alias in part.aliases:
            root, offset = roots.get(alias.source, (alias.source, 0))
            roots[alias.tensor] = (root, offset + alias.offset)
    return roots


def _temporaries(lowered: Sequence[LoweredNode]) -> dict[str, int]:
    return {name: n for part in lowered for name, n in part.temporaries.items()}


def _lifetimes(
    calls: Sequence[Call], roots: Mapping[str, tuple[str, int]], kept: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """The first and last call that touches each root; tensors copied out at the end live until then."""
    lives: dict[str, tuple[int, int]] = {}

    def touch(tensor: str, at: int) -> None:
        root = roots.get(tensor, (tensor, 0))[0]
        first, _ = lives.get(root, (at, at))
        lives[root] = (first, at)

    for at, call in enumerate(calls):
        for tensor in _call_tensors(call):
            touch(tensor, at)
    for tensor in kept:
        touch(tensor, len(calls))
    return lives


def _merge(
    calls: Sequence[Call],
    roots: dict[str, tuple[str, int]],
    sizes: Mapping[str, int],
    places: dict[str, TensorLocation],
    lives: dict[str, tuple[int, int]],
) -> None:
    """Let an in-place call write into the memory of an input that dies there: x becomes an alias of y."""
    for at, call in enumerate(calls):
        if not call.in_place or call.in_place in places:
            continue
        x, y = call.in_place, call.writes[0]
        is_whole = x not in roots and y not in roots and sizes[x] == sizes[y]
        is_read_once = [roots.get(r, (r, 0))[0] for r in call.reads].count(x) == 1
        if is_whole and is_read_once and lives[x][1] == at == lives[y][0]:
            first, _ = lives.pop(x)
            lives[y] = (first, lives[y][1])
            for tensor, (root, offset) in roots.items():
                if root == x:
                    roots[tensor] = (y, offset)
            roots[x] = (y, 0)


def _call_tensors(call: Call) -> Iterator[str]:
    yield from call.reads
    yield from call.writes
