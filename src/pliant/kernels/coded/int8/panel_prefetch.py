"""Prefetch the next panel's weights while the tiles of this one multiply.

A panel is read all at once, and the hardware prefetcher starts only then, so the kernel would wait for memory
or the last-level cache. Therefore a part of the next panel is prefetched after every tile.
"""

import ctypes
from collections.abc import Callable

from pliant.kernels.coded.fill import GROUP_BYTES, GROUP_ROWS, locate_slice
from pliant.kernels.coded.gemm_args import GemmArgs, SliceDesc
from pliant.kernels.coded.int8.tile_int8 import tile_shape
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.values import Value

PanelPrefetch = Callable[[int], None]
"""Prefetches the next part after a tile of the given number of rows."""

_LEAST_ROWS = 32  # with fewer rows there are too few tiles
_LINE_BYTES = 64
_LEVEL = 2


class _PrefetchState(ctypes.Structure):
    """The next position to prefetch: a line of all planes of a column group's segment, for groups before
    `end`.
    """

    _fields_ = (
        ("group", ctypes.c_int64),
        ("segment", ctypes.c_int64),
        ("line", ctypes.c_int64),
        ("end", ctypes.c_int64),
    )


def allocate_prefetch_state(f: Function) -> Value:
    """Memory for the prefetch state; must be emitted in a function's first block."""
    return f.op(f"alloca [{ctypes.sizeof(_PrefetchState)} x i8], align 8", "ptr")


def prefetch_bytes(f: Function, space: Value, start: Value, lines: Value, n_rows: Value) -> PanelPrefetch:
    """Prefetch resident weights: the `lines` cache lines from `start` on."""
    f.store(start, space)
    share = f.select(n_rows >= _LEAST_ROWS, (lines + n_rows - 1) // n_rows, f.const(0))

    def ask(rows: int) -> None:
        here, n = f.load(space, "ptr"), share * rows
        with f.each(0, n) as line:
            f.prefetch(f.at(here, line * _LINE_BYTES, "i8"), level=_LEVEL)
        f.store(f.at(here, n * _LINE_BYTES, "i8"), space)

    return ask


def prefetch_planes(f: Function, space: Value, group: Value, groups: int, stop: Value) -> PanelPrefetch:
    """Prefetch codes: the planes of `groups` column groups from `group` on, but none from `stop` on."""
    args = f.params[0]
    segment_rows, n_segments, n_rows = f.fields(args, GemmArgs, "segment_rows", "n_segments", "n_rows")
    start = {"group": group, "segment": f.const(0), "line": f.const(0), "end": f.least(group + groups, stop)}
    for name, value in start.items():
        _set(f, space, name, value)
    lines = segment_rows // GROUP_ROWS * n_segments * groups
    height = tile_shape(f.isa).rows
    share = f.select(n_rows >= _LEAST_ROWS, (lines * height + n_rows - 1) // n_rows, f.const(0))

    def ask(rows: int) -> None:
        f.call("ask_planes", "void", args, space, share)

    return ask


def write_ask_planes(module: Module) -> None:
    """Define `ask_planes(args, state, lines)`: prefetches `lines` lines of every plane, fewer at the end."""
    params = [("args", "ptr"), ("state", "ptr"), ("lines", "i64")]
    with module.function("ask_planes", params, attributes="noinline", is_exported=False) as f:
        _, state, lines = f.params
        (end,) = f.fields(state, _PrefetchState, "end")
        with f.repeat([lines]) as loop:
            (group,) = f.fields(state, _PrefetchState, "group")
            (left,) = f.choose(
                (loop.carried[0] > 0) & (group < end),
                lambda: [loop.carried[0] - _prefetch_segment(f, group, loop.carried[0])],
                lambda: [f.const(0)],
            )
            loop.repeat_if(left > 0, [left])
        f.ret()


def _prefetch_segment(f: Function, group: Value, lines: Value) -> Value:
    """Prefetch up to `lines` lines of the current segment; returns their number."""
    args, state, _ = f.params
    segment_rows, n_segments, per_slice = f.fields(
        args, GemmArgs, "segment_rows", "n_segments", "column_groups_per_slice"
    )
    segment, line = f.fields(state, _PrefetchState, "segment", "line")
    count = segment_rows // GROUP_ROWS
    desc, first_group, _ = locate_slice(f, args, group // per_slice + segment)
    at = (first_group + group % per_slice * count + line) * GROUP_BYTES
    n = f.least(lines, count - line)
    (bits,) = f.fields(desc, SliceDesc, "bits")
    planes = f.at(desc, SliceDesc.planes.offset, "i8")
    # Full fidelity is not prefetched.
    with f.each(0, f.select(bits <= 6, bits, f.const(0))) as q:
        here = f.at(f.load(f.at(planes, q, "ptr"), "ptr"), at, "i8")
        with f.each(0, n) as i:
            f.prefetch(f.at(here, i * GROUP_BYTES, "i8"), level=_LEVEL)
    is_over = (line + n).compare("eq", count)
    is_last = is_over & (segment + 1).compare("eq", n_segments)
    _set(f, state, "line", f.select(is_over, f.const(0), line + n))
    following = f.select(is_last, f.const(0), segment + 1)
    _set(f, state, "segment", f.select(is_over, following, segment))
    _set(f, state, "group", f.select(is_last, group + 1, group))
    return n


def _set(f: Function, state: Value, name: str, value: Value) -> None:
    f.store(value, f.at(state, getattr(_PrefetchState, name).offset, "i8"))
