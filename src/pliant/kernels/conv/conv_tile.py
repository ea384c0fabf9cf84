"""The register tile of a convolution: a few pixels times 16 output channels."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pliant.kernels.conv.conv_activations import ACTIVATIONS
from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value

COLUMNS = 16
UNROLL = 4


def tile_pixels(isa: Isa) -> int:
    """Pixels of a full tile: 12 sums, which hide the latency of FMA, or 24 where there are 32 registers."""
    return {"avx512": 12, "avx2": 6, "neon": 6, "x86-64": 3}[isa.name]


@dataclass(frozen=True, slots=True)
class TileArgs:
    """c = start + a @ b, and then + residual and activation if `is_last`. Strides in floats.

    `start` is a row (stride 0, the bias) or c itself; `ahead` is memory that is wanted soon.
    """

    a: Value
    lda: Value
    b: Value
    start: Value
    start_stride: Value
    c: Value
    ldc: Value
    residual: Value
    depth: Value
    is_last: Value
    ahead: Value
    low: Value
    high: Value


_PARAMS = [
    ("a", "ptr"),
    ("lda", "i64"),
    ("b", "ptr"),
    ("start", "ptr"),
    ("start_stride", "i64"),
    ("c", "ptr"),
    ("ldc", "i64"),
    ("residual", "ptr"),
    ("depth", "i64"),
    ("is_last", "i1"),
    ("ahead", "ptr"),
    ("low", "float"),
    ("high", "float"),
]


def write_tiles(module: Module, form: ConvForm) -> None:
    """Define the tiles of 1 .. full pixels; `depth` is a multiple of 4.

    A channels-first image is packed [depth][pixels of a full tile], any other one is rows with stride lda.
    """
    for pixels in range(1, tile_pixels(module.isa) + 1):
        _write_tile(module, form, pixels)


def call_pixels(f: Function, count: Value, is_packed: bool, at: Callable[[Value], TileArgs]) -> None:
    """Cover `count` pixels with tiles; `at(pixel)` says where the tile that starts there works.

    Rows allow two even tiles at the end instead of a full one and a short one.
    """
    full = tile_pixels(f.isa)
    left = count % full
    if is_packed:
        rest, first = left, left
    else:
        is_short = (left * 2 < full) & (left.compare("ne", 0)) & (count > full)
        rest = f.select(is_short, left + full, left)
        first = f.select(rest > full, (rest + 1) >> 1, rest)
    n_full = count - rest
    with f.each(0, n_full, full) as pixel:
        _call(f, full, at(pixel))
    for pixels, start in ((first, n_full), (rest - first, n_full + first)):
        if is_packed and pixels is not first:
            break
        args = at(start)
        f.match(pixels, {n: partial(_call, f, n, args) for n in range(1, full + 1)})


def _call(f: Function, pixels: int, t: TileArgs) -> None:
    f.call(f"tile{pixels}", "void", *(getattr(t, name) for name, _ in _PARAMS))


def _write_tile(module: Module, form: ConvForm, pixels: int) -> None:
    with module.function(f"tile{pixels}", _PARAMS, attributes="noinline", is_exported=False) as f:
        a, lda, b, start, start_stride, c, ldc, residual, depth, is_last, ahead, low, high = f.params
        vectors = COLUMNS // f.lanes
        full = tile_pixels(f.isa)
        rows = [f.at(a, lda * i) for i in range(pixels)] if form.x != "nchw" else []
        places = [(i, v * f.lanes) for i in range(pixels) for v in range(vectors)]
        sums = [f.load(f.at(start, start_stride * i + v), f.vec) for i, v in places]
        with f.loop(0, depth, UNROLL, carry=sums) as k:
            now = list(k.carried)
            f.prefetch(f.at(ahead, k.index * (COLUMNS // UNROLL)))
            for step in range(UNROLL):
                row = (k.index + step) * COLUMNS
                columns = [f.load(f.at(b, row + v), f.vec, 4 * f.lanes) for v in range(0, COLUMNS, f.lanes)]
                for i in range(pixels):
                    p = f.at(a, (k.index + step) * full + i) if not rows else f.at(rows[i], k.index + step)
                    x = f.splat(f.load(p))
                    for v, column in enumerate(columns):
                        n = i * vectors + v
                        now[n] = f.fma(x, column, now[n])
            k.carry(now)
        sums = k.carried

        def store(values: list[Value]) -> None:
            for x, (i, v) in zip(values, places, strict=True):
                f.store(x, f.at(c, ldc * i + v))

        if form.y == "nchw":
            store(sums)
        else:
            with f.when(is_last):
                done = sums
                if form.has_residual:
                    done = [
                        x + f.load(f.at(residual, ldc * i + v), f.vec)
                        for x, (i, v) in zip(sums, places, strict=True)
                    ]
                bounds = f.splat(low), f.splat(high)
                store([ACTIVATIONS[form.activation](f, x, *bounds) for x in done])
                f.ret()
                f.place(f.label("dead"))
            store(sums)
        f.ret()
