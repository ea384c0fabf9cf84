"""A 3x3 convolution of stride 1 by Winograd's F(4x4, 3x3), channels last, float32.

A unit is some tiles of 4 x 4 output pixels of one image times some panels of 16 output channels: the tiles'
inputs are transformed into scratch once; each panel multiplies them at 36 places and transforms the results
into y. Input and output channels are multiples of 16.
"""

import ctypes
from collections.abc import Sequence

import numpy as np

from pliant.kernels.conv.conv_activations import ACTIVATIONS
from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.conv.conv_tile import (
    COLUMNS,
    ConvTileArgs,
    call_pixels,
    each_panels,
    tile_panels,
    tile_pixels,
    write_tiles,
)
from pliant.kernels.conv.winograd_matrices import INPUTS, OUTPUTS, PLACES, input_matrix, output_matrix
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value

_DEPTH_BLOCK = 256


class WinogradArgs(ctypes.Structure):
    """y = activation(conv(x, w) + bias + residual); `weights` in the format of winograd_matrices.pack.

    `tiles` of an image are in rows of `tiles_w`; a unit has `unit_tiles` of them and `unit_panels`.
    `residual` may be null unless the form has one.
    """

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("x", "weights", "bias", "residual", "y")],
        *[
            (name, ctypes.c_int64)
            for name in (
                *("channels", "out_channels", "in_h", "in_w", "out_h", "out_w", "pad_h", "pad_w"),
                *("tiles", "tiles_w", "unit_tiles", "tile_blocks", "unit_panels", "panel_blocks"),
            )
        ],
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


def name(form: ConvForm) -> str:
    """The kernel's name."""
    return form.name.replace("conv", "winograd", 1)


def scratch_bytes(isa: Isa, channels: int, unit_tiles: int) -> int:
    """Scratch a thread needs: transformed inputs, products of a tile's panels, zeros, addresses, a tile."""
    values = PLACES * unit_tiles * (channels + tile_panels(isa) * COLUMNS) + channels
    return 4 * values + 8 * PLACES + 4 * PLACES * COLUMNS + 64


def winograd_ir(isa: Isa, form: ConvForm) -> str:
    """The kernel `name(form)` with WinogradArgs, for every shape."""
    module = Module(isa)
    write_tiles(module, ConvForm("nhwc", "nhwc"))
    _write_inputs(module)
    _write_outputs(module, form)
    _write_unit(module)
    with module.kernel(name(form)) as f:
        args, lo, hi, scratch = f.params
        with f.each(lo, hi) as unit:
            f.call("unit", "void", args, unit, scratch)
    return module.text()


def _write_unit(module: Module) -> None:
    params = (("args", "ptr"), ("unit", "i64"), ("scratch", "ptr"))
    with module.function("unit", params, attributes="noinline", is_exported=False) as f:
        args, unit, scratch = f.params
        names = (
            "channels",
            "out_channels",
            "tiles",
            "unit_tiles",
            "tile_blocks",
            "unit_panels",
            "panel_blocks",
        )
        channels, outs, tiles, unit_tiles, tile_blocks, unit_panels, panel_blocks = f.fields(
            args, WinogradArgs, *names
        )
        (weights,) = f.fields(args, WinogradArgs, "weights")
        first_panel = unit % panel_blocks * unit_panels
        rest = unit // panel_blocks
        first_tile, image = rest % tile_blocks * unit_tiles, rest // tile_blocks
        count = f.least(unit_tiles, tiles - first_tile)
        n_panels = f.least(unit_panels, outs // COLUMNS - first_panel)
        inputs = scratch
        products = f.at(inputs, unit_tiles * channels * PLACES)
        c_step = unit_tiles * (PLACES * COLUMNS)
        space = f.at(products, c_step * tile_panels(f.isa))
        f.call("inputs", "void", args, image, first_tile, count, inputs, space)
        zeros = f.table([0.0] * COLUMNS, "float")
        null = f.const(0, "ptr")
        none = f.const(0.0, "float")

        def visit(i: Value, width: int) -> None:
            panel = first_panel + i
            with f.each(0, PLACES) as place:
                a_place = f.at(inputs, place * count * channels)
                b_place = f.at(weights, (panel * PLACES + place) * channels * COLUMNS)
                c_place = f.at(products, place * count * COLUMNS)
                with f.each(0, channels, _DEPTH_BLOCK) as k:
                    depth = f.least(channels - k, _DEPTH_BLOCK)
                    b = f.at(b_place, k * COLUMNS)
                    is_start = k.compare("eq", 0)
                    start = f.select(is_start, zeros, c_place)
                    stride = f.select(is_start, f.const(0), f.const(COLUMNS))
                    start_step = f.select(is_start, f.const(0), c_step)

                    def at(p: Value) -> ConvTileArgs:
                        return ConvTileArgs(
                            a=f.at(a_place, p * channels + k),
                            lda=channels,
                            b=b,
                            b_step=channels * (PLACES * COLUMNS),
                            start=f.at(start, p * stride),
                            start_stride=stride,
                            start_step=start_step,
                            c=f.at(c_place, p * COLUMNS),
                            ldc=f.const(COLUMNS),
                            c_step=c_step,
                            residual=null,
                            depth=depth,
                            is_last=f.const(0, "i1"),
                            ahead=f.at(
                                b, depth * COLUMNS + (p // tile_pixels(f.isa)) * (depth * (COLUMNS // 4))
                            ),
                            low=none,
                            high=none,
                        )

                    call_pixels(f, count, width, False, at)
            for n in range(width):
                own = f.at(products, c_step * n)
                f.call("outputs", "void", args, image, first_tile, count, panel + n, own, space)

        each_panels(f, n_panels, n_panels, visit)
        f.ret()


def _write_inputs(module: Module) -> None:
    """`inputs`: [place][tile][channel] of the transformed 6 x 6 patches; with zeros around the image."""
    params = [
        ("args", "ptr"),
        ("image", "i64"),
        ("first", "i64"),
        ("count", "i64"),
        ("to", "ptr"),
        ("space", "ptr"),
    ]
    with module.function("inputs", params, attributes="noinline", is_exported=False) as f:
        args, image, first, count, to, space = f.params
        x, channels, in_h, in_w = f.fields(args, WinogradArgs, "x", "channels", "in_h", "in_w")
        pad_h, pad_w, tiles_w = f.fields(args, WinogradArgs, "pad_h", "pad_w", "tiles_w")
        pointers, patch = space, f.at(space, PLACES * 2)
        zeros = f.at(patch, PLACES * COLUMNS)
        with f.each(0, channels, f.lanes) as c:
            f.store(f.const(0.0, f.vec), f.at(zeros, c))
        plane = f.at(x, image * in_h * in_w * channels)
        with f.each(0, count) as i:
            tile = first + i
            top = tile // tiles_w * OUTPUTS - pad_h
            left = tile % tiles_w * OUTPUTS - pad_w
            for row in range(INPUTS):
                for column in range(INPUTS):
                    h, w = top + row, left + column
                    inside = f.op(f"icmp ult {h}, {in_h.text}", "i1") & f.op(
                        f"icmp ult {w}, {in_w.text}", "i1"
                    )
                    source = f.select(inside, f.at(plane, (h * in_w + w) * channels), zeros)
                    f.store(source, f.at(pointers, row * INPUTS + column, "ptr"))
            with f.each(0, channels, f.lanes) as c:
                for column in range(INPUTS):
                    sources = [
                        f.load(f.at(pointers, row * INPUTS + column, "ptr"), "ptr") for row in range(INPUTS)
                    ]
                    values = _product(f, input_matrix(), [f.load(f.at(p, c), f.vec) for p in sources])
                    for row, value in enumerate(values):
                        f.store(value, f.at(patch, (row * INPUTS + column) * COLUMNS))
                    f.barrier()
                for row in range(INPUTS):
                    line = [
                        f.load(f.at(patch, (row * INPUTS + column) * COLUMNS), f.vec)
                        for column in range(INPUTS)
                    ]
                    for column, value in enumerate(_product(f, input_matrix(), line)):
                        place = count * (row * INPUTS + column) + i
                        f.store(value, f.at(to, place * channels + c))
        f.ret()


def _write_outputs(module: Module, form: ConvForm) -> None:
    """`outputs`: one panel's products at all places, [place][tile][16], as pixels of y."""
    params = [("args", "ptr"), ("image", "i64"), ("first", "i64"), ("count", "i64")]
    params += [("panel", "i64"), ("products", "ptr"), ("patch", "ptr")]
    with module.function("outputs", params, attributes="noinline", is_exported=False) as f:
        args, image, first, count, panel, products, patch = f.params
        y, residual, bias, outs = f.fields(args, WinogradArgs, "y", "residual", "bias", "out_channels")
        out_h, out_w, tiles_w, low, high = f.fields(
            args, WinogradArgs, "out_h", "out_w", "tiles_w", "low", "high"
        )
        bounds = f.splat(low), f.splat(high)
        with f.each(0, count) as i, f.each(0, COLUMNS, f.lanes) as lane:
            tile = first + i
            top, left = tile // tiles_w * OUTPUTS, tile % tiles_w * OUTPUTS
            channel = panel * COLUMNS + lane
            offset = f.load(f.at(bias, channel), f.vec)
            for column in range(INPUTS):
                found = [
                    f.load(f.at(products, (count * (row * INPUTS + column) + i) * COLUMNS + lane), f.vec)
                    for row in range(INPUTS)
                ]
                for row, value in enumerate(_product(f, output_matrix(), found)):
                    f.store(value, f.at(patch, (row * INPUTS + column) * COLUMNS))
            f.barrier()
            for row in range(OUTPUTS):
                with f.when(top + row < out_h):
                    line = [
                        f.load(f.at(patch, (row * INPUTS + column) * COLUMNS), f.vec)
                        for column in range(INPUTS)
                    ]
                    for column, value in enumerate(_product(f, output_matrix(), line)):
                        with f.when(left + column < out_w):
                            pixel = (image * out_h + top + row) * out_w + left + column
                            at = pixel * outs + channel
                            total = value + offset
                            if form.has_residual:
                                total = total + f.load(f.at(residual, at), f.vec)
                            f.store(ACTIVATIONS[form.activation](f, total, *bounds), f.at(y, at))
        f.ret()


def _product(f: Function, matrix: np.ndarray, vectors: Sequence[Value]) -> list[Value]:
    """matrix @ vectors, where columns 1, 2 and 3, 4 belong to points of opposite sign.

    Rows (or columns) then form pairs that differ only in the sign of odd terms, so that sums are shared.
    """
    if len(matrix) == INPUTS:
        return _by_rows(f, matrix, vectors)
    sums = [vectors[1] + vectors[2], vectors[3] + vectors[4]]
    differences = [vectors[1] - vectors[2], vectors[3] - vectors[4]]
    results = []
    for power, row in enumerate(matrix):
        pairs = differences if power % 2 else sums
        terms = [(row[1], pairs[0]), (row[3], pairs[1]), (row[0], vectors[0]), (row[5], vectors[5])]
        results.append(_sum(f, terms))
    return results


def _by_rows(f: Function, matrix: np.ndarray, vectors: Sequence[Value]) -> list[Value]:
    """Row 0 has even powers only, the last one odd ones; the second row of each pair is the first at -x."""
    first = _sum(f, list(zip(matrix[0][::2], vectors[::2], strict=True)))
    last = _sum(f, list(zip(matrix[5][1::2], vectors[1::2], strict=True)))
    middle = []
    for row in (matrix[1], matrix[3]):
        even = _sum(f, list(zip(row[::2], vectors[::2], strict=True)))
        odd = _sum(f, list(zip(row[1::2], vectors[1::2], strict=True)))
        middle += [even + odd, even - odd]
    return [first, *middle, last]


def _sum(f: Function, terms: Sequence[tuple[float, Value]]) -> Value:
    """The sum of the terms with nonzero factors; factors of one need no multiplication."""
    real = sorted(((c, v) for c, v in terms if abs(c) > 1e-12), key=lambda term: abs(term[0]) != 1.0)
    factor, value = real[0]
    total = value if factor == 1.0 else -value if factor == -1.0 else value * float(factor)
    for factor, value in real[1:]:
        if abs(factor) == 1.0:
            total = total + value if factor > 0 else total - value
        else:
            total = f.fma(value, f.const(float(factor), value.type), total)
    return total
