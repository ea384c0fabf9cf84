"""Copy a block of an image to rows or columns of a matrix (im2col).

A block is some output pixels times a range of the depth; values outside the image are zero.
"""

from collections.abc import Callable

from pliant.kernels.conv.conv_args import ConvArgs
from pliant.kernels.conv.conv_tile import tile_pixels
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.emit.vmath import largest

_PARAMS = [
    ("args", "ptr"),
    ("x", "ptr"),  # the first value of the image and group
    ("pixel", "i64"),
    ("count", "i64"),
    ("first", "i64"),  # the range of the depth; past the real depth zeros are written
    ("last", "i64"),
    ("to", "ptr"),
    ("line", "ptr"),  # room for one value of each pixel and a vector
]


def tile_stride(isa: Isa, block: Value) -> Value:
    """Floats of a packed tile of `block` depth; full vectors are written, so there is room for one more at
    the end.
    """
    return block * tile_pixels(isa) + 16


def write_fill_rows(module: Module) -> None:
    """`fill`: to[pixel][k - first] of a channels-last image."""
    with module.function("fill", _PARAMS, attributes="noinline", is_exported=False) as f:
        args, x, pixel, count, first, last, to, _ = f.params
        length, depth, width, channels, height, stride = f.fields(
            args, ConvArgs, "run_length", "depth", "in_w", "x_channels", "in_h", "stride_w"
        )
        block = last - first
        real = f.least(last, depth)
        with f.each(first // length, (real + length - 1) // length) as run:
            begin = largest(f, first, run * length)
            offset = begin - run * length
            n = f.least(f.least((run + 1) * length, real) - begin, block)
            tap = _DepthRun(f, args, run)
            row = f.at(to, begin - first)

            def visit(i: Value, d: Value, h: Value, w: Value) -> None:
                in_w = w * stride + tap.w
                lead = _clamp(f, -(in_w * channels) - offset, n)
                stop = _clamp(f, (width - in_w) * channels - offset, n)
                is_inside = tap.is_inside(d, h)
                lead = f.select(is_inside, lead, n)
                stop = f.select(is_inside, stop, n)
                here = f.at(row, i * block)
                line = (tap.depth(d) * height + tap.height(h)) * width + in_w
                source = f.at(x, line * channels + offset)
                with f.when(lead > 0):
                    _each(f, lead, lambda j, lanes: _zero(f, here, j, lanes))
                with f.when(stop > lead):
                    behind, begin_ = f.at(here, lead), f.at(source, lead)
                    _each(f, stop - lead, lambda j, lanes: _copy(f, begin_, behind, j, lanes))
                with f.when(n > stop):
                    rest = f.at(here, stop)
                    _each(f, n - stop, lambda j, lanes: _zero(f, rest, j, lanes))

            _each_pixel(f, args, pixel, count, visit)
        with f.when(last > real), f.each(0, count) as i, f.each(largest(f, real, first), last) as k:
            f.store(f.const(0.0, "float"), f.at(to, i * block + k - first))
        f.ret()


def write_fill_columns(module: Module) -> None:
    """`fill`: to[tile][k - first][pixel of the tile] of a channels-first image.

    For each depth, its pixels are collected in `line`, then distributed to the tiles.
    """
    full = tile_pixels(module.isa)
    with module.function("fill", _PARAMS, attributes="noinline", is_exported=False) as f:
        args, x, pixel, count, first, last, to, line = f.params
        length, depth, width, height, deep, stride = f.fields(
            args, ConvArgs, "run_length", "depth", "in_w", "in_h", "in_d", "stride_w"
        )
        step = tile_stride(f.isa, last - first)
        real = f.least(last, depth)
        n_tiles = (count + full - 1) // full
        plane = deep * height * width
        with f.each(first // length, (real + length - 1) // length) as run:
            tap = _DepthRun(f, args, run)
            low, high = _inside(f, tap.w, width, stride)
            begin = largest(f, first, run * length)
            with f.each(begin, f.least((run + 1) * length, real)) as k:
                source = f.at(x, (k - run * length) * plane)

                def visit(i: Value, n: Value, d: Value, h: Value, w: Value) -> None:
                    is_inside = tap.is_inside(d, h)
                    lead = f.select(is_inside, _clamp(f, low - w, n), n)
                    stop = f.select(is_inside, largest(f, lead, _clamp(f, high - w, n)), n)
                    here = f.at(line, i)
                    row = (tap.depth(d) * height + tap.height(h)) * width + w * stride + tap.w
                    with f.when(lead > 0):
                        _each(f, lead, lambda j, lanes: _zero(f, here, j, lanes))
                    with f.when(stop > lead):
                        behind, begin_ = f.at(here, lead), f.at(source, row + lead * stride)

                        def strided() -> list[Value]:
                            with f.each(0, stop - lead) as j:
                                f.store(f.load(f.at(begin_, j * stride)), f.at(behind, j))
                            return []

                        def dense() -> list[Value]:
                            _each(f, stop - lead, lambda j, lanes: _copy(f, begin_, behind, j, lanes))
                            return []

                        f.choose(stride.compare("eq", 1), dense, strided)
                    with f.when(n > stop):
                        rest = f.at(here, stop)
                        _each(f, n - stop, lambda j, lanes: _zero(f, rest, j, lanes))

                _each_segment(f, args, pixel, count, visit)
                column = f.at(to, (k - first) * full)
                with f.each(0, n_tiles) as t:
                    for i in range(0, full, f.lanes):
                        f.store(f.load(f.at(line, t * full + i), f.vec), f.at(column, t * step + i))
        with f.when(last > real), f.each(largest(f, real, first), last) as k, f.each(0, n_tiles) as t:
            for i in range(0, full, f.lanes):
                f.store(f.const(0.0, f.vec), f.at(to, t * step + (k - first) * full + i))
        f.ret()


class _DepthRun:
    """One run of the depth: the position of its first value relative to an output pixel."""

    def __init__(self, f: Function, args: Value, run: Value) -> None:
        self._f, self._args = f, args
        runs_w, kernel_h = f.fields(args, ConvArgs, "runs_w", "kernel_h")
        row = run // runs_w
        self.d = self._offset("d", row // kernel_h)
        self.h = self._offset("h", row % kernel_h)
        self.w = self._offset("w", run % runs_w)
        self._strides = f.fields(args, ConvArgs, "stride_d", "stride_h")
        self._extents = f.fields(args, ConvArgs, "in_d", "in_h")

    def _offset(self, axis: str, place: Value) -> Value:
        dilation, pad = self._f.fields(self._args, ConvArgs, f"dilation_{axis}", f"pad_{axis}")
        return place * dilation - pad

    def depth(self, d: Value) -> Value:
        return d * self._strides[0] + self.d

    def height(self, h: Value) -> Value:
        return h * self._strides[1] + self.h

    def is_inside(self, d: Value, h: Value) -> Value:
        inside = [
            self._f.op(f"icmp ult {at}, {extent.text}", "i1")
            for at, extent in zip((self.depth(d), self.height(h)), self._extents, strict=True)
        ]
        return inside[0] & inside[1]


def _each_pixel(
    f: Function,
    args: Value,
    pixel: Value,
    count: Value,
    visit: Callable[[Value, Value, Value, Value], None],
) -> None:
    """`visit(i, d, h, w)` for `count` output pixels from `pixel` on."""
    height, width = f.fields(args, ConvArgs, "out_h", "out_w")
    with f.loop(0, count, carry=_place(pixel, height, width)) as loop:
        d, h, w = loop.carried
        visit(loop.index, d, h, w)
        loop.carry(_next(f, d, h, w + 1, height, width))


def _each_segment(
    f: Function,
    args: Value,
    pixel: Value,
    count: Value,
    visit: Callable[[Value, Value, Value, Value, Value], None],
) -> None:
    """`visit(i, n, d, h, w)` for stretches of n output pixels in one row, from `pixel` on."""
    height, width = f.fields(args, ConvArgs, "out_h", "out_w")
    with f.repeat([f.const(0), *_place(pixel, height, width)]) as loop:
        i, d, h, w = loop.carried
        n = f.least(width - w, count - i)
        visit(i, n, d, h, w)
        loop.repeat_if(i + n < count, [i + n, *_next(f, d, h, w + n, height, width)])


def _place(pixel: Value, height: Value, width: Value) -> list[Value]:
    row = pixel // width
    return [row // height, row % height, pixel % width]


def _next(f: Function, d: Value, h: Value, w: Value, height: Value, width: Value) -> list[Value]:
    """The position at w, moved to the next row or plane if w is the row's end."""
    is_end = w.compare("eq", width)
    h = f.select(is_end, h + 1, h)
    is_bottom = h.compare("eq", height)
    zero = f.const(0)
    return [f.select(is_bottom, d + 1, d), f.select(is_bottom, zero, h), f.select(is_end, zero, w)]


def _inside(f: Function, tap: Value, width: Value, stride: Value) -> tuple[Value, Value]:
    """Output columns low..high-1 whose tap is within the image's width; they may exceed the output."""
    low = f.select(tap < 0, (-tap + stride - 1) // stride, f.const(0))
    room = width - tap
    return low, f.select(room > 0, (room + stride - 1) // stride, f.const(0))


def _each(f: Function, n: Value, visit: Callable[[Value, int], None]) -> None:
    """`visit(first, lanes)` over n values: vectors, the last overlapping, or single values if n is small."""

    def vectors() -> list[Value]:
        with f.each(0, n - (f.lanes - 1), f.lanes) as j:
            visit(j, f.lanes)
        visit(n - f.lanes, f.lanes)
        return []

    def singles() -> list[Value]:
        with f.each(0, n) as j:
            visit(j, 1)
        return []

    f.choose(n >= f.lanes, vectors, singles)


def _copy(f: Function, source: Value, to: Value, j: Value, lanes: int) -> None:
    type_ = f.vec if lanes > 1 else "float"
    f.store(f.load(f.at(source, j), type_), f.at(to, j))


def _zero(f: Function, to: Value, j: Value, lanes: int) -> None:
    f.store(f.const(0.0, f.vec if lanes > 1 else "float"), f.at(to, j))


def _clamp(f: Function, x: Value, limit: Value) -> Value:
    """x within 0..limit."""
    return f.least(largest(f, x, f.const(0)), limit)
