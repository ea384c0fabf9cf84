"""The register tile of a convolution: a few pixels times one or two panels of 16 output channels."""

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
    """Pixels of a full tile: together with `tile_panels` 12 to 28 sums, which hide the latency of FMA; 8 on
    SSE.
    """
    return {"avx512": 14, "avx2": 6, "neon": 6, "x86-64": 2}[isa.name]


def tile_panels(isa: Isa) -> int:
    """Panels of a full tile.

    A panel is one AVX-512 vector: with one panel each FMA reads memory, and a CPU that starts two FMAs per
    cycle starts at most two loads. With two panels, a loaded pixel is used by two FMAs.
    """
    return 2 if isa.name == "avx512" else 1


@dataclass(frozen=True, slots=True)
class ConvTileArgs:
    """c = start + a @ b, and then + residual and activation if `is_last`. Strides in floats.

    `start` is a row (stride 0, the bias) or c itself; `ahead` is memory to prefetch. A second panel is
    `b_step` floats after the first in b and `ahead`, `start_step` in start, `c_step` in c and residual.
    """

    a: Value
    lda: Value
    b: Value
    b_step: Value
    start: Value
    start_stride: Value
    start_step: Value
    c: Value
    ldc: Value
    c_step: Value
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
    ("b_step", "i64"),
    ("start", "ptr"),
    ("start_stride", "i64"),
    ("start_step", "i64"),
    ("c", "ptr"),
    ("ldc", "i64"),
    ("c_step", "i64"),
    ("residual", "ptr"),
    ("depth", "i64"),
    ("is_last", "i1"),
    ("ahead", "ptr"),
    ("low", "float"),
    ("high", "float"),
]


def write_tiles(module: Module, form: ConvForm) -> None:
    """Define the tiles of 1 .. full pixels and panels; `depth` is a multiple of 4.

    A channels-first image is packed [depth][pixels of a full tile], any other is rows with stride lda.
    """
    for panels in range(1, tile_panels(module.isa) + 1):
        for pixels in range(1, tile_pixels(module.isa) + 1):
            _write_tile(module, form, pixels, panels)


def each_panels(f: Function, n_panels: Value, n_whole: Value, visit: Callable[[Value, int], None]) -> None:
    """`visit(first, panels)` for all panels: full tiles in the first `n_whole`, then one by one."""
    full, done = tile_panels(f.isa), f.const(0)
    if full > 1:
        done = n_whole - n_whole % full
        with f.each(0, done, full) as panel:
            visit(panel, full)
    with f.each(done, n_panels) as panel:
        visit(panel, 1)


def call_pixels(
    f: Function, count: Value, panels: int, is_packed: bool, at: Callable[[Value], ConvTileArgs]
) -> None:
    """Cover `count` pixels with tiles; `at(pixel)` returns the operands of the tile that starts there.

    With rows, the last two tiles are of equal size instead of a full one and a short one.
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
        _call(f, full, panels, at(pixel))
    for pixels, start in ((first, n_full), (rest - first, n_full + first)):
        if is_packed and pixels is not first:
            break
        args = at(start)
        f.match(pixels, {n: partial(_call, f, n, panels, args) for n in range(1, full + 1)})


def _call(f: Function, pixels: int, panels: int, t: ConvTileArgs) -> None:
    f.call(_name(pixels, panels), "void", *(getattr(t, name) for name, _ in _PARAMS))


def _name(pixels: int, panels: int) -> str:
    return f"tile{pixels}x{panels}"


def _write_tile(module: Module, form: ConvForm, pixels: int, panels: int) -> None:
    name = _name(pixels, panels)
    with module.function(name, _PARAMS, attributes="noinline", is_exported=False) as f:
        t = ConvTileArgs(*f.params)
        vectors = range(0, COLUMNS, f.lanes)
        full = tile_pixels(f.isa)
        rows = [f.at(t.a, t.lda * i) for i in range(pixels)] if form.x != "nchw" else []
        bs = [f.at(t.b, t.b_step * p) for p in range(panels)]
        aheads = [f.at(t.ahead, t.b_step * p) for p in range(panels)]

        def places(base: Value, stride: Value, step: Value) -> list[Value]:
            """Addresses of the tile's vectors, pixel by pixel."""
            panel = [f.at(base, step * p) for p in range(panels)]
            return [f.at(at, stride * i + v) for i in range(pixels) for at in panel for v in vectors]

        is_pinned = panels > 1 or f.isa.name == "neon"
        sums = [f.load(at, f.vec) for at in places(t.start, t.start_stride, t.start_step)]
        with f.loop(0, t.depth, UNROLL, carry=sums) as k:
            now = list(k.carried)
            for ahead in aheads:
                f.prefetch(f.at(ahead, k.index * (COLUMNS // UNROLL)))
            for step in range(UNROLL):
                row = (k.index + step) * COLUMNS
                columns = [f.load(f.at(b, row + v), f.vec, 4 * f.lanes) for b in bs for v in vectors]
                for i in range(pixels):
                    p = f.at(t.a, (k.index + step) * full + i) if not rows else f.at(rows[i], k.index + step)
                    x = f.splat(f.load(p))
                    own = slice(i * len(columns), (i + 1) * len(columns))
                    products = [f.fma(x, c, total) for c, total in zip(columns, now[own], strict=True)]
                    now[own] = f.pin(products) if is_pinned else products
            k.carry(now)
        sums = k.carried
        ends = places(t.c, t.ldc, t.c_step)

        def store(values: list[Value]) -> None:
            for x, at in zip(values, ends, strict=True):
                f.store(x, at)

        if form.y == "nhwc":
            with f.when(t.is_last):
                done = sums
                if form.has_residual:
                    added = places(t.residual, t.ldc, t.c_step)
                    done = [x + f.load(at, f.vec) for x, at in zip(sums, added, strict=True)]
                bounds = f.splat(t.low), f.splat(t.high)
                store([ACTIVATIONS[form.activation](f, x, *bounds) for x in done])
                f.ret()
                f.place(f.label("dead"))
        store(sums)
        f.ret()
