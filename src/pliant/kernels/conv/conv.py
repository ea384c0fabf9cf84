"""Convolution as a matrix product of image blocks, copied to scratch, with packed weights; float32.

A unit is a block of output pixels of one image and group times some panels of 16 output channels.
"""

from dataclasses import dataclass

from pliant.kernels.conv.conv_args import ConvArgs, ConvForm
from pliant.kernels.conv.conv_epilogue import write_finish
from pliant.kernels.conv.conv_im2col import tile_stride, write_fill_columns, write_fill_rows
from pliant.kernels.conv.conv_tile import (
    COLUMNS,
    ConvTileArgs,
    call_pixels,
    each_panels,
    tile_panels,
    tile_pixels,
    write_tiles,
)
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value

DEPTH_BLOCK = 256
"""Depth of the blocks that are multiplied at a time: a panel's block of 16 KB stays in L1."""

__all__ = [
    "COLUMNS",
    "DEPTH_BLOCK",
    "ConvArgs",
    "ConvForm",
    "ConvUnits",
    "conv_ir",
    "divide_units",
    "scratch_bytes",
]

_UNITS_PER_THREAD = 4


@dataclass(frozen=True, slots=True)
class ConvUnits:
    """Pixels and panels of one unit."""

    unit_pixels: int
    unit_panels: int


def divide_units(isa: Isa, n_blocks: int, pixels: int, panels: int, n_threads: int) -> ConvUnits:
    """Divide `n_blocks` products (images times groups) of `pixels` x `panels` into units.

    More pixels reuse weights more, more panels reuse an image block more: pixels are divided first, but into
    at least two tiles, then panels, until every thread has some units.
    """
    tile, together = tile_pixels(isa), tile_panels(isa)
    unit_pixels = max(min(-(-pixels // tile), 96 // tile), 1) * tile
    unit_panels = max(panels, 1)
    wanted = _UNITS_PER_THREAD * n_threads if n_threads > 1 else 1

    def units() -> int:
        return n_blocks * -(-pixels // unit_pixels) * -(-panels // unit_panels)

    def half(panels: int) -> int:
        return -(-panels // (2 * together)) * together if panels > together else 1

    while units() < wanted and unit_panels > 8:
        unit_panels = half(unit_panels)
    while units() < wanted and unit_pixels >= 4 * tile:
        unit_pixels = -(-unit_pixels // 2 // tile) * tile
    while units() < wanted and unit_panels > 1:
        unit_panels = half(unit_panels)
    return ConvUnits(unit_pixels, unit_panels)


def scratch_bytes(isa: Isa, cut: ConvUnits) -> int:
    """Scratch a thread needs: a block of the image, a line of it, and sums that cannot be stored in y."""
    sums = cut.unit_panels * cut.unit_pixels * COLUMNS
    return 4 * (_image_floats(isa, cut.unit_pixels) + cut.unit_pixels + 32 + sums)


def _image_floats(isa: Isa, unit_pixels: int) -> int:
    tile = tile_pixels(isa)
    return -(-unit_pixels // tile) * (tile * DEPTH_BLOCK + 16)


def conv_ir(isa: Isa, form: ConvForm) -> str:
    """The kernel `form.name` with ConvArgs, for every shape."""
    module = Module(isa)
    (write_fill_columns if form.x == "nchw" else write_fill_rows)(module)
    write_tiles(module, form)
    write_finish(module, form)
    _write_unit(module, form)
    with module.kernel(form.name) as f:
        args, lo, hi, scratch = f.params
        with f.each(lo, hi) as unit:
            f.call("unit", "void", args, unit, scratch)
    return module.text()


def _write_unit(module: Module, form: ConvForm) -> None:
    params = (("args", "ptr"), ("unit", "i64"), ("scratch", "ptr"))
    with module.function("unit", params, attributes="noinline", is_exported=False) as f:
        args, unit, _ = f.params
        unit_panels, panel_blocks, unit_pixels, pixel_blocks, groups, panels, pixels = f.fields(
            args,
            ConvArgs,
            "unit_panels",
            "panel_blocks",
            "unit_pixels",
            "pixel_blocks",
            "groups",
            "panels",
            "pixels",
        )
        first_panel = unit % panel_blocks * unit_panels
        rest = unit // panel_blocks
        pixel = rest % pixel_blocks * unit_pixels
        image_group = rest // pixel_blocks
        count = f.least(unit_pixels, pixels - pixel)
        n_panels = f.least(unit_panels, panels - first_panel)
        _write_blocks(
            f, form, image_group // groups, image_group % groups, pixel, count, first_panel, n_panels
        )
        f.ret()


def _write_blocks(
    f: Function,
    form: ConvForm,
    image: Value,
    group: Value,
    pixel: Value,
    count: Value,
    first_panel: Value,
    n_panels: Value,
) -> None:
    """Emit all depth blocks, one after the other, for the unit's pixels and panels."""
    args, _, scratch = f.params
    x, y, residual, weights, bias = f.fields(args, ConvArgs, "x", "y", "residual", "weights", "bias")
    names = ("channels", "x_channels", "out_channels", "y_channels", "pixels", "panels", "padded_depth")
    channels, x_channels, out_channels, y_channels, pixels, panels, depth = f.fields(args, ConvArgs, *names)
    in_d, in_h, in_w, is_direct = f.fields(args, ConvArgs, "in_d", "in_h", "in_w", "is_direct")
    unit_pixels, low, high = f.fields(args, ConvArgs, "unit_pixels", "low", "high")
    tile = tile_pixels(f.isa)
    plane = in_d * in_h * in_w
    is_first_x = form.x == "nchw"
    x_group = channels * group
    image_at = f.at(x, image * plane * x_channels + (x_group * plane if is_first_x else x_group))
    n_tiles = (unit_pixels + (tile - 1)) // tile
    line = f.at(scratch, n_tiles * (tile * DEPTH_BLOCK + 16))
    sums = f.at(scratch, n_tiles * (tile * DEPTH_BLOCK + 16) + ((unit_pixels + 31) // 16) * 16)
    y_group = group * out_channels
    null = f.const(0, "ptr")
    with f.each(0, depth, DEPTH_BLOCK) as k:
        block = f.least(depth - k, DEPTH_BLOCK)
        is_last = (k + block).compare("eq", depth)

        def fill() -> list[Value]:
            f.call("fill", "void", args, image_at, pixel, count, k, k + block, scratch, line)
            return [scratch, block]

        a, lda = (
            fill()
            if is_first_x
            else f.choose(
                is_direct.compare("ne", 0), lambda: [f.at(image_at, pixel * x_channels + k), x_channels], fill
            )
        )
        step = tile_stride(f.isa, block)
        n_whole = n_panels if form.y == "nchw" else f.least(n_panels, out_channels // COLUMNS - first_panel)

        def visit(i: Value, width: int) -> None:
            panel = first_panel + i
            panel_group = group * panels + panel
            b = f.at(weights, (panel_group * depth + k) * COLUMNS)
            ahead = f.at(b, depth * (COLUMNS * width))
            here = f.at(sums, i * unit_pixels * COLUMNS)
            valid = f.least(out_channels - panel * COLUMNS, COLUMNS)
            channel = y_group + panel * COLUMNS
            if form.y == "nchw":
                at = (image * y_channels + channel) * pixels + pixel
                in_scratch = f.const(1, "i1")
            else:
                at = (image * pixels + pixel) * y_channels + channel
                in_scratch = valid < COLUMNS
            y_at, residual_at = f.at(y, at), f.at(residual, at) if form.has_residual else null
            c = f.select(in_scratch, here, y_at)
            ldc = f.select(in_scratch, f.const(COLUMNS), y_channels)
            c_step = f.select(in_scratch, unit_pixels * COLUMNS, f.const(COLUMNS))
            is_start = k.compare("eq", 0)
            start = f.select(is_start, f.at(bias, panel_group * COLUMNS), c)
            start_stride = f.select(is_start, f.const(0), ldc)
            ends_here = is_last & in_scratch.compare("eq", 0)

            def at_pixel(p: Value) -> ConvTileArgs:
                return ConvTileArgs(
                    a=f.at(a, (p // tile) * step) if is_first_x else f.at(a, p * lda),
                    lda=lda,
                    b=b,
                    b_step=depth * COLUMNS,
                    start=f.at(start, p * start_stride),
                    start_stride=start_stride,
                    start_step=f.select(is_start, f.const(COLUMNS), c_step),
                    c=f.at(c, p * ldc),
                    ldc=ldc,
                    c_step=c_step,
                    residual=f.at(residual_at, p * ldc) if form.has_residual else null,
                    depth=block,
                    is_last=ends_here,
                    ahead=f.at(ahead, (p // tile) * (block * (COLUMNS // 4))),
                    low=low,
                    high=high,
                )

            call_pixels(f, count, width, is_first_x, at_pixel)
            if form.y == "nhwc" and width > 1:
                return
            y_step = pixels * COLUMNS if form.y == "nchw" else f.const(0)
            with f.when(is_last & in_scratch):
                for n in range(width):
                    own = [f.at(here, unit_pixels * (COLUMNS * n)), count]
                    own += [f.least(out_channels - (panel + n) * COLUMNS, COLUMNS), f.at(y_at, y_step * n)]
                    own += [f.at(residual_at, y_step * n) if form.has_residual else null]
                    f.call("finish", "void", args, *own)

        each_panels(f, n_panels, n_whole, visit)
