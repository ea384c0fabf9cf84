"""Convolution in tiles of bfloat16: each number as the sum of two bfloat16, or rounded to one.

The input is split, channels last, with borders around it, so that the pixels of 16 adjacent outputs are rows
of a tile in place, without copies. A unit is some lines of an output image, or a part of one, times some
panels of 16 output channels. For each row of taps, whose channels are adjacent over the whole width of the
window, products are added to sums in scratch.
"""

import ctypes

from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.conv.conv_epilogue import write_finish
from pliant.kernels.conv.conv_tile import COLUMNS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.tiles.tile_ops import TILE_ROWS
from pliant.kernels.tiles.tile_rows import (
    TILE,
    LeftRows,
    config_space,
    multiply_rows,
    release_tiles,
    sums_bytes,
    write_tile_rows,
)

PANELS = 2
"""Panels of 16 output channels that are multiplied together."""
_FLOATS = TILE // 4

_IMAGE = ("image_words", "part_words", "pixel_words", "group_words", "frame_h", "frame_w")
_RUNS = ("runs", "run_words", "runs_w", "kernel_h")
_WEIGHTS = ("weights_part", "panel_words", "panels", "groups", "out_channels", "y_channels")
_SPACE = ("pixels", "out_d", "out_h", "out_w", "stride_d", "stride_h", "stride_w")
_DILATIONS = ("dilation_d", "dilation_h", "dilation_w")
_UNITS = ("unit_panels", "panel_blocks", "unit_columns", "column_blocks", "unit_lines", "line_blocks")
_SEGMENTS = ("segment_lines", "line_step")


class TiledConvArgs(ctypes.Structure):
    """y = activation(conv(x, w) + bias + residual), float32; 1 and 2 dimensions are padded to 3 with leading
    ones.

    A word is two bfloat16. `x` is [images][in_d][frame_h][frame_w][channels], followed by the lower parts,
    `part_words` later. The depth runs over (kernel d, h, w, channel); it is divided into `runs` of
    `run_words` that are adjacent in the image; a kernel row has `runs_w` of them. `weights` are
    [groups][panels][panel_words / 16][16] words, and the lower parts `weights_part` bytes later; `bias` is
    float32 [groups][panels * 16]. In a segment of lines, the second line's pixels begin `line_step` tile rows
    after the first's; rows in between belong to no pixel. `residual`, in y's layout, may be null unless the
    form has one. `low` and `high` are the activation's parameters.
    """

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("x", "weights", "bias", "residual", "y")],
        *[
            (name, ctypes.c_int64)
            for name in (*_IMAGE, *_RUNS, *_WEIGHTS, *_SPACE, *_DILATIONS, *_UNITS, *_SEGMENTS)
        ],
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


def tiles_name(form: ConvForm, parts: int) -> str:
    """The kernel's name."""
    return form.name.replace("conv", "conv_split" if parts == 2 else "conv_bf16", 1)


def scratch_bytes_tiles(rows: int) -> int:
    """Scratch a thread needs for segments of `rows` tile rows, 64-byte aligned."""
    return sums_bytes(rows, PANELS)


def conv_tiles_ir(isa: Isa, form: ConvForm, parts: int) -> str:
    """The kernel `tiles_name(form, parts)` with TiledConvArgs, for every shape."""
    assert isa.has_tiles, isa.name
    module = Module(isa)
    write_tile_rows(module, "bf16", parts)
    write_finish(module, form, TiledConvArgs, (16, 8, 4))
    for panels in range(1, PANELS + 1):
        _write_start(module, panels)
        _write_segment(module, form, panels, parts)
    _write_unit(module)
    with module.kernel(tiles_name(form, parts)) as f:
        args, lo, hi, scratch = f.params
        config = config_space(f)
        with f.each(lo, hi) as unit:
            f.call("unit", "void", args, unit, scratch, config)
        release_tiles(f, config)
    return module.text()


_SEGMENT = [
    *(("args", "ptr"), ("x", "ptr"), ("scratch", "ptr"), ("config", "ptr"), ("lines", "i64")),
    *(("columns", "i64"), ("image", "i64"), ("group", "i64"), ("panel", "i64"), ("pixel", "i64")),
]
"""`x` is the first input pixel of the segment's first output, `pixel`."""


def _write_unit(module: Module) -> None:
    params = [("args", "ptr"), ("unit", "i64"), ("scratch", "ptr"), ("config", "ptr")]
    with module.function("unit", params, attributes="noinline", is_exported=False) as f:
        args, unit, scratch, config = f.params
        unit_panels, panel_blocks, unit_columns, column_blocks = f.fields(args, TiledConvArgs, *_UNITS[:4])
        unit_lines, line_blocks, segment_lines = f.fields(
            args, TiledConvArgs, "unit_lines", "line_blocks", "segment_lines"
        )
        _, out_d, out_h, out_w, stride_d, stride_h, stride_w = f.fields(args, TiledConvArgs, *_SPACE)
        image_words, _, pixel_words, group_words, frame_h, frame_w = f.fields(args, TiledConvArgs, *_IMAGE)
        x, panels, groups = f.fields(args, TiledConvArgs, "x", "panels", "groups")
        panel, left = unit % panel_blocks * unit_panels, unit // panel_blocks
        column, left = left % column_blocks * unit_columns, left // column_blocks
        line, left = left % line_blocks * unit_lines, left // line_blocks
        d, left = left % out_d, left // out_d
        group, image = left % groups, left // groups
        columns, last_line = f.least(unit_columns, out_w - column), f.least(line + unit_lines, out_h)
        n_panels = f.least(unit_panels, panels - panel)
        whole = n_panels - n_panels % PANELS
        plane = f.at(x, image * image_words + group * group_words)
        done = f.const(0)
        for wide, stop in ((PANELS, whole), (1, n_panels)):
            with f.each(done, stop, wide) as i, f.each(line, last_line, segment_lines) as first:
                row = (d * stride_d * frame_h + first * stride_h) * frame_w + column * stride_w
                lines = f.least(segment_lines, last_line - first)
                pixel = (d * out_h + first) * out_w + column
                under = f.at(plane, row * pixel_words)
                places = (image, group, panel + i, pixel)
                f.call(f"segment_{wide}", "void", args, under, scratch, config, lines, columns, *places)
            done = stop
        f.ret()


def _write_segment(module: Module, form: ConvForm, panels: int, parts: int) -> None:
    """`segment_<panels>`: the segment's lines for some panels: all taps, then the epilogue."""
    with module.function(f"segment_{panels}", _SEGMENT, attributes="noinline", is_exported=False) as f:
        args, x, scratch, config, lines, columns, _, group, panel, _ = f.params
        weights, bias, weights_part, panel_words, n_panels = f.fields(
            args, TiledConvArgs, "weights", "bias", "weights_part", "panel_words", "panels"
        )
        runs, run_words, runs_w, kernel_h = f.fields(args, TiledConvArgs, *_RUNS)
        by_d, by_h, by_w = f.fields(args, TiledConvArgs, *_DILATIONS)
        _, part_words, pixel_words, _, frame_h, frame_w = f.fields(args, TiledConvArgs, *_IMAGE)
        stride_w, line_step = f.fields(args, TiledConvArgs, "stride_w", "line_step")
        rows = (lines - 1) * line_step + columns
        first = group * n_panels + panel
        f.call(f"start_{panels}", "void", scratch, f.at(bias, first * COLUMNS), rows)
        beside = [f.at(weights, (first + g) * panel_words) for g in range(panels)]
        with f.each(0, runs) as run:
            row, w = run // runs_w, run % runs_w
            pixel = (row // kernel_h * by_d * frame_h + row % kernel_h * by_h) * frame_w + w * by_w
            left = LeftRows(f.at(x, pixel * pixel_words), pixel_words * stride_w * 4, part_words * 4)
            upper = [f.at(b, run * run_words * COLUMNS) for b in beside]
            is_first = f.const(0, "i1")  # the sums start with the bias
            lower = [f.at(b, weights_part, "i8") for b in upper] if parts == 2 else []
            multiply_rows(f, "bf16", config, left, upper, scratch, rows, run_words, is_first, parts, lower)
        with f.each(0, lines) as line:
            _write_line(f, form, panels, line, line * line_step)
        f.ret()


def _write_start(module: Module, panels: int) -> None:
    """`start_<panels>(sums, bias, rows)`: the bias as sums, row by row."""
    params = [("sums", "ptr"), ("bias", "ptr"), ("rows", "i64")]
    with module.function(f"start_{panels}", params, attributes="noinline", is_exported=False) as f:
        sums, bias, rows = f.params
        vectors = [(g, v) for g in range(panels) for v in range(0, COLUMNS, f.lanes)]
        values = [f.load(f.at(bias, g * COLUMNS + v), f.vec) for g, v in vectors]
        with f.each(0, rows) as row:
            here = _row(f, sums, row, panels)
            for (g, v), value in zip(vectors, values, strict=True):
                f.store(value, f.at(here, g * _FLOATS + v))
        f.ret()


def _write_line(f: Function, form: ConvForm, panels: int, line: Value, first_row: Value) -> None:
    """Write the sums of a line's pixels to y, one block of tiles at a time."""
    args, _, sums, _, _, columns, image, group, panel, first_pixel = f.params
    y, residual, pixels, out_w, outs, y_channels = f.fields(
        args, TiledConvArgs, "y", "residual", "pixels", "out_w", "out_channels", "y_channels"
    )
    start = first_pixel + line * out_w
    with f.repeat([f.const(0)]) as loop:
        (i,) = loop.carried
        row, pixel = first_row + i, start + i
        count = f.least(columns - i, f.const(TILE_ROWS) - (row & (TILE_ROWS - 1)))
        here = _row(f, sums, row, panels)
        for g in range(panels):
            channel = (panel + g) * COLUMNS
            of_y = group * outs + channel
            if form.y == "nhwc":
                at = (image * pixels + pixel) * y_channels + of_y
            else:
                at = (image * y_channels + of_y) * pixels + pixel
            ends = [f.at(p, at) for p in ((y, residual) if form.has_residual else (y,))]
            if not form.has_residual:
                ends.append(f.const(0, "ptr"))
            valid = f.least(outs - channel, COLUMNS)
            f.call("finish", "void", args, f.at(here, g * _FLOATS), count, valid, *ends)
        loop.repeat_if(i + count < columns, [i + count])


def _row(f: Function, sums: Value, row: Value, panels: int) -> Value:
    """The start of a row of sums in its block, for the first panel."""
    return f.at(sums, (row >> 4) * (panels * _FLOATS) + (row & (TILE_ROWS - 1)) * COLUMNS)
