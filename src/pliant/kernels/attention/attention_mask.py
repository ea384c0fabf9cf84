"""Masks on a block of scores in scratch: added, or later keys hidden."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import e as euler
from math import inf, log2

from pliant.kernels.attention.attention_steps import QUAD, BlockShape, Scratch, quad_of_rows, rows_at
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value
from pliant.kernels.emit.vmath import largest

_LOWEST = -3.0e38  # the lower limit of masks: the lowest float times log2(e) would be -inf


def add_mask(
    f: Function, shape: BlockShape, n_keys: Value, at: Scratch, mask: Value, ld: Value, rows: Sequence[Value]
) -> list[Value]:
    """Add log2(e) * mask to the scores; returns the new maxima. `ld` is 0 where all rows share a mask."""
    lowest = [f.const(-inf, f.vec)] * shape.vectors

    def shared() -> list[Value]:
        with f.loop(0, n_keys, carry=lowest) as loop:
            by = _scale_mask(f, f.splat(f.load(f.at(mask, loop.index))))
            every = dict.fromkeys(range(shape.vectors), by)
            loop.carry(_shift(f, shape, at, loop.index, every, loop.carried))
        return loop.carried

    def by_row() -> list[Value]:
        starts = [f.at(mask, row * ld) for row in rows]
        blocks = [starts[v * f.lanes : (v + 1) * f.lanes] for v in range(shape.vectors)]
        whole = n_keys & -QUAD
        with f.loop(0, whole, QUAD, carry=lowest) as loop:
            tops = loop.carried
            for v, block in enumerate(blocks):
                for i, row in enumerate(quad_of_rows(f, block, loop.index)):
                    tops = _shift(f, shape, at, loop.index + i, {v: _scale_mask(f, row)}, tops)
                    tops = f.pin(tops)  # else all blocks are transposed before the first is added
            loop.carry(tops)
        with f.loop(whole, n_keys, carry=loop.carried) as rest:
            by = {v: _scale_mask(f, rows_at(f, block, rest.index)) for v, block in enumerate(blocks)}
            rest.carry(_shift(f, shape, at, rest.index, by, rest.carried))
        return rest.carried

    return f.choose(ld.compare("eq", 0), shared, by_row)


def mask_later_keys(f: Function, shape: BlockShape, n_keys: Value, at: Scratch, last: Value) -> list[Value]:
    """Hide keys after `last` + i from row i of the block; returns the new maxima."""
    numbers = [
        f.splat(last) + f.const_lanes(range(v * f.lanes, (v + 1) * f.lanes), "i64")
        for v in range(shape.vectors)
    ]
    hidden = f.const(-inf, f.vec)
    with f.loop(0, n_keys, carry=[hidden] * shape.vectors) as loop:
        key = f.splat(loop.index)

        def hide(v: int, score: Value) -> Value:
            return f.select(key > numbers[v], hidden, score)

        loop.carry(_change(f, shape, at, loop.index, hide, loop.carried, range(shape.vectors)))
    return loop.carried


def _scale_mask(f: Function, mask: Value) -> Value:
    by = mask * log2(euler)
    return f.select((by < _LOWEST) & (mask > -inf), f.const(_LOWEST, f.vec), by)


def _shift(
    f: Function, shape: BlockShape, at: Scratch, key: Value, by: Mapping[int, Value], tops: Sequence[Value]
) -> list[Value]:
    """Add `by` to the scores, for the vectors of rows in `by`."""
    return _change(f, shape, at, key, lambda v, score: score + by[v], tops, by)


def _change(
    f: Function,
    shape: BlockShape,
    at: Scratch,
    key: Value,
    change: Callable[[int, Value], Value],
    tops: Sequence[Value],
    vectors: Iterable[int],
) -> list[Value]:
    """Change a key's scores in place; returns the maxima."""
    found = list(tops)
    for v in vectors:
        place = shape.score(f, at, key, v)
        score = change(v, f.load(place, f.vec))
        f.store(score, place)
        found[v] = largest(f, score, tops[v])
    return found
