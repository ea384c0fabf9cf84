"""Choose the kernel and the loops that copy one view into another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from pliant.compiler.executable.call import Call, FieldValue, Kernel, Ref
from pliant.compiler.rewrite.view import View
from pliant.errors import GraphError
from pliant.ir.graph import Node
from pliant.ir.symbolic import at_least, at_most, plain_value
from pliant.kernels.emit.nest import OUTER
from pliant.kernels.move import move

UNIT_BYTES = 16 << 10
"""Approximate bytes per unit: enough to hide the start-up time, few enough to balance threads."""

ONE_THREAD_BYTES = 64 << 10
"""Below this size, waking another thread does not pay."""

_SHORT = 4
_TILE_BLOCK = 64


@dataclass(frozen=True, slots=True)
class CopyLoop:
    """One loop: `n` turns, and the strides in bytes of source and target."""

    n: int
    source: int
    target: int


def copy_calls(source: View, target: View, size: int, label: str) -> tuple[Call, ...]:
    """Calls that copy `source` to `target`, of equal shape and without overlap; elements of `size` bytes.

    Target strides are positive and no two elements of the target share a place. Raises GraphError for
    different shapes, since the kernel would read or write outside.
    """
    if source.shape != target.shape:
        raise GraphError(
            f"{source.tensor!r} seen as {list(source.shape)} cannot be copied into {target.tensor!r} seen as "
            f"{list(target.shape)}."
        )
    if source.count == 0:
        return ()
    dims = [
        CopyLoop(n, s * size, t * size)
        for n, s, t in zip(source.shape, source.strides, target.strides, strict=True)
    ]
    start = source.offset * size, target.offset * size
    if size > max(move.SIZES):
        dims.append(CopyLoop(size // 8, 8, 8))
        size = 8
    return tuple(
        _call(part, size, (Ref(source.tensor, at[0]), Ref(target.tensor, at[1])), label)
        for part, at in _parts(merge_loops(dims), start, size)
    )


def merge_loops(dims: Sequence[CopyLoop]) -> list[CopyLoop]:
    """Loops in the target's order, outermost first, with adjacent loops merged where possible."""
    return collapse_loops(sorted(dims, key=lambda d: (-d.target, -abs(d.source))))


def collapse_loops(dims: Sequence[CopyLoop]) -> list[CopyLoop]:
    """Loops in the given order, outermost first, with adjacent loops merged where possible."""
    found: list[CopyLoop] = []
    for dim in dims:
        outer = found[-1] if found else None
        if outer and outer.source == dim.n * dim.source and outer.target == dim.n * dim.target:
            found[-1] = CopyLoop(outer.n * dim.n, dim.source, dim.target)
        elif dim.n != 1:
            found.append(dim)
    return found


def split_inner_loops(
    node: Node, dims: Sequence[CopyLoop], size: int
) -> tuple[list[CopyLoop], CopyLoop, CopyLoop, int]:
    """The outer loops, the two inner ones, and the iterations of `m` per unit.

    Raises GraphError if there are more loops than a nest supports.
    """
    *outer, m, n = [CopyLoop(1, 0, 0)] * (2 - len(dims)) + list(dims)
    if len(outer) > OUTER:
        raise GraphError(
            f"node {node.name!r} ({node.op}) walks over {len(dims)} dimensions; kernels have {OUTER + 2}."
        )
    return outer, m, n, at_most(at_least(UNIT_BYTES // (n.n * size), 1), m.n)


def nest_fields(outer: Sequence[CopyLoop], m: CopyLoop, n: CopyLoop, block: int) -> dict[str, FieldValue]:
    """The fields of a `Nest` in an argument structure's field `nest`; loops outermost first."""
    inwards = tuple(reversed(outer))
    pad = (0,) * (OUTER - len(inwards))
    return {
        "nest.n_outer": len(inwards),
        "nest.dims": tuple(d.n for d in inwards) + pad,
        "nest.source_outer": tuple(d.source for d in inwards) + pad,
        "nest.target_outer": tuple(d.target for d in inwards) + pad,
        "nest.m": m.n,
        "nest.source_m": m.source,
        "nest.target_m": m.target,
        "nest.block": block,
        "nest.n_blocks": -(-m.n // block),
        "nest.n": n.n,
        "nest.source_n": n.source,
        "nest.target_n": n.target,
    }


def grain_of(n_units: int, n_bytes: int) -> int:
    """The number of units that a thread takes at once, if all units together move `n_bytes`."""
    if plain_value(n_bytes) < ONE_THREAD_BYTES:  # every grain is right
        return at_least(n_units, 1)
    return at_least(n_units * UNIT_BYTES // n_bytes, 1)


def _parts(
    dims: list[CopyLoop], at: tuple[int, int], size: int
) -> Iterator[tuple[list[CopyLoop], tuple[int, int]]]:
    """The nest, divided if it has too many loops or too long a row."""
    if len(dims) > OUTER + 2:
        first, *rest = dims
        for i in range(first.n):
            yield from _parts(rest, (at[0] + i * first.source, at[1] + i * first.target), size)
        return
    last = dims[-1] if dims else CopyLoop(1, size, size)
    if last.target != size or last.n * size < 2 * UNIT_BYTES or len(dims) > OUTER + 1:
        yield dims, at
        return
    chunk = UNIT_BYTES // size
    whole, rest_n = divmod(last.n, chunk)
    outer = dims[:-1]
    inner = CopyLoop(chunk, last.source, last.target)
    yield [*outer, CopyLoop(whole, chunk * last.source, chunk * last.target), inner], at
    if rest_n:
        done = whole * chunk
        rest_at = at[0] + done * last.source, at[1] + done * last.target
        yield [*outer, CopyLoop(rest_n, last.source, last.target)], rest_at


def _call(dims: list[CopyLoop], size: int, at: tuple[Ref, Ref], label: str) -> Call:
    dims, size = _widen(dims, size)
    kind, dims = _kind(dims, size)
    *outer, m, n = [CopyLoop(1, 0, 0)] * (2 - len(dims)) + dims
    if kind == "rows":
        kernel = Kernel("move_rows", partial(move.rows_ir, name="move_rows"))
        n = CopyLoop(n.n * size, 1, 1)
    else:
        name = f"move_{kind}_{size}"
        kernel = Kernel(name, partial(_GENERATORS[kind], name=name, size=size))
    row_bytes = n.n * (1 if kind == "rows" else size)
    block = at_most(_TILE_BLOCK if kind == "transpose" else at_least(UNIT_BYTES // row_bytes, 1), m.n)
    n_units = prod(d.n for d in outer) * -(-m.n // block)
    return Call(
        kernel=kernel,
        layout=move.MoveArgs,
        fields={"source": at[0], "target": at[1], **nest_fields(outer, m, n, block)},
        n_units=n_units,
        reads=(at[0].tensor,),
        writes=(at[1].tensor,),
        grain=grain_of(n_units, prod(d.n for d in outer) * m.n * row_bytes),
        label=label,
    )


_GENERATORS = {"strided": move.strided_ir, "spread": move.spread_ir, "transpose": move.transpose_ir}


def _widen(dims: list[CopyLoop], size: int) -> tuple[list[CopyLoop], int]:
    """Treat a short contiguous run as one element, if there is an element type of its size."""
    if len(dims) > 1 and dims[-1].source == dims[-1].target == size and dims[-1].n * size in move.SIZES:
        return dims[:-1], dims[-1].n * size
    return dims, size


def _kind(dims: list[CopyLoop], size: int) -> tuple[str, list[CopyLoop]]:
    """The kernel for these loops, and the loops in its order: ..., m, n."""
    if not dims:
        return "rows", [CopyLoop(1, size, size)]
    last = dims[-1]
    if last.target == size and last.source == size:
        return "rows", dims
    if last.target == size and last.source == 0:
        return "spread", dims
    across = [i for i, d in enumerate(dims[:-1]) if d.source == size and d.n >= _SHORT]
    if last.target == size and last.n >= _SHORT and across:
        i = across[0]
        return "transpose", [*dims[:i], *dims[i + 1 : -1], dims[i], last]
    if len(dims) > 1 and dims[-2].n > last.n:
        return "strided", [*dims[:-2], last, dims[-2]]
    return "strided", dims
