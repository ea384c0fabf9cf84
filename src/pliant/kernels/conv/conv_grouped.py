"""Convolution in groups of few channels, float32: without panels of products, so that no lane multiplies
zeros.

A unit is a band of output rows of one image times a block of channels: 16, or one group if that is wider. The
input rows of a band are copied to scratch as pixels of one block, with zeros around them. A register tile of
adjacent pixels times a vector of output channels reads each pixel once per tap row and channel, and gives
every lane the channel of its own group.
"""

import ctypes
from dataclasses import dataclass, field

from pliant.kernels.conv.conv_activations import ACTIVATIONS
from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.conv.conv_tile import COLUMNS
from pliant.kernels.conv.transpose_planes import pixels_to_planes, planes_to_pixels
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value

_INTEGERS = (
    "x_channels",
    "y_channels",
    "blocks",  # of channels, in one image
    "panels",  # of 16 output channels, in one block
    "band",  # output rows of a unit
    "bands",
    "band_in",  # input rows under them
    "in_h",
    "in_w",
    "out_h",
    "out_w",
    "kernel_h",
    "stride_h",
    "dilation_h",
    "pad_h",
    "pad_w",
    "columns",  # of a row in scratch
    "copied",  # of these, the columns inside the image
)


class GroupedArgs(ctypes.Structure):
    """y = activation(conv(x, w) + bias + residual), float32, one or two spatial dimensions.

    `weights` are [blocks][panels][kernel h][channel][kernel w][16], with the channel's index in its group,
    and `bias` [blocks][panels][16]. The last block may overlap the previous one. `residual`, in y's layout,
    may be null unless the form has one.
    """

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("x", "weights", "bias", "residual", "y")],
        *[(name, ctypes.c_int64) for name in _INTEGERS],
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class GroupedForm:
    """The compile-time parameters of such a convolution.

    A group has `channels` of x: 2, 4 or 8 with as many of y, or a multiple of 16 with a multiple of 16 of y.
    A tile computes `pixels` pixels.
    """

    channels: int
    kernel_w: int
    stride_w: int = 1
    dilation_w: int = 1
    pixels: int = 7
    ends: ConvForm = field(default_factory=ConvForm)

    @property
    def name(self) -> str:
        numbers = f"{self.channels}c_{self.kernel_w}w_{self.stride_w}s_{self.dilation_w}d_{self.pixels}p"
        return f"{self.ends.name.replace('conv', 'grouped', 1)}_{numbers}"

    @property
    def width(self) -> int:
        """Channels of x in a block."""
        return max(self.channels, COLUMNS)

    @property
    def columns(self) -> int:
        """Pixels of a row that one tile reads."""
        return (self.pixels - 1) * self.stride_w + (self.kernel_w - 1) * self.dilation_w + 1


def most_pixels(isa: Isa, kernel_w: int) -> int:
    """Pixels of a tile whose sums fit in registers beside the weights of a row of taps and their products."""
    return isa.registers - kernel_w - (2 if isa.has_fma else 3)


def scratch_bytes(form: GroupedForm, band_in: int, columns: int, in_w: int, band_pixels: int) -> int:
    """Bytes for the input rows of a band, and for channels-first x and y as pixels of a block."""
    rows = band_in * columns * form.width
    image = band_in * in_w * form.width if form.ends.x == "nchw" else 0
    return 4 * (rows + image + (band_pixels * COLUMNS if form.ends.y == "nchw" else 0))


def grouped_ir(isa: Isa, form: GroupedForm) -> str:
    """The kernel `form.name` with GroupedArgs."""
    module = Module(isa)
    _write_tile(module, form)
    with module.kernel(form.name) as f, f.each(f.params[1], f.params[2]) as unit:
        _write_unit(f, form, unit)
    return module.text()


def _write_unit(f: Function, form: GroupedForm, unit: Value) -> None:
    args, _, _, scratch = f.params
    blocks, panels, band, bands, out_h, band_in = f.fields(
        args, GroupedArgs, "blocks", "panels", "band", "bands", "out_h", "band_in"
    )
    stride, dilation, kernel, pad, columns, in_w = f.fields(
        args, GroupedArgs, "stride_h", "dilation_h", "kernel_h", "pad_h", "columns", "in_w"
    )
    first = unit % bands * band
    block, image = unit // bands % blocks, unit // bands // blocks
    count = f.least(band, out_h - first)
    image_rows = f.at(scratch, band_in * columns * form.width)
    sums = f.at(image_rows, band_in * in_w * form.width) if form.ends.x == "nchw" else image_rows
    top = first * stride - pad
    window = (kernel - 1) * dilation + 1
    source = _source(f, form, image, block, top, (count - 1) * stride + window, image_rows)
    with f.loop(0, panels, carry=[f.const(0)]) as over:
        panel = block * panels + over.index
        with f.loop(0, count, carry=over.carried) as loop:
            (filled,) = loop.carried
            end = loop.index * stride + window
            with f.each(filled, end) as row:
                _fill(f, form, source, top + row, f.at(scratch, row * columns * form.width))
            row = f.at(scratch, loop.index * stride * columns * form.width)
            _multiply(f, form, (image, block, panel, over.index), (first, loop.index), row, sums)
            loop.carry([f.select(end > filled, end, filled)])
        if form.ends.y == "nchw":
            _finish(f, form, (image, block, over.index), first, count, sums)
        over.carry(loop.carried)


@dataclass(frozen=True, slots=True)
class _Source:
    """The address of pixel 0 of image row 0, and the strides in floats."""

    first: Value
    pixel: Value


def _source(
    f: Function, form: GroupedForm, image: Value, block: Value, top: Value, rows: Value, to: Value
) -> _Source:
    """The block's channels as pixels: in x, or consecutive after transposing planes."""
    args = f.params[0]
    x, channels, in_h, in_w = f.fields(args, GroupedArgs, "x", "x_channels", "in_h", "in_w")
    channel = f.least(block * form.width, channels - form.width)
    plane = in_h * in_w
    if form.ends.x == "nhwc":
        return _Source(f.at(x, image * plane * channels + channel), channels)
    zero = f.const(0)
    low = f.select(top < 0, zero, f.least(top, in_h))
    high = f.select(top + rows < 0, zero, f.least(top + rows, in_h))
    planes = f.at(x, (image * channels + channel) * plane + low * in_w)

    planes_to_pixels(f, planes, plane, (high - low) * in_w, form.width, to)
    return _Source(f.at(to, -(low * in_w * form.width)), f.const(form.width))


def _fill(f: Function, form: GroupedForm, source: _Source, h: Value, to: Value) -> None:
    """One row of scratch: row `h` of the image between zeros, or zeros if it is outside."""
    args = f.params[0]
    in_h, in_w, pad, columns, copied = f.fields(
        args, GroupedArgs, "in_h", "in_w", "pad_w", "columns", "copied"
    )
    zero = f.const(0.0, f.vec)

    def clear(first: Value, stop: Value) -> None:
        with f.each(first * form.width, stop * form.width, f.lanes) as i:
            f.store(zero, f.at(to, i))

    def copy() -> list[Value]:
        clear(f.const(0), pad)
        row = f.at(source.first, h * in_w * source.pixel)
        with f.each(0, copied) as pixel:
            a, b = f.at(row, pixel * source.pixel), f.at(to, (pad + pixel) * form.width)
            for i in range(0, form.width, f.lanes):
                f.store(f.load(f.at(a, i), f.vec), f.at(b, i))
        clear(pad + copied, columns)
        return []

    def empty() -> list[Value]:
        clear(f.const(0), columns)
        return []

    f.choose(f.op(f"icmp ult {h}, {in_h.text}", "i1"), copy, empty)


def _multiply(
    f: Function,
    form: GroupedForm,
    place: tuple[Value, Value, Value, Value],
    rows: tuple[Value, Value],
    row: Value,
    sums: Value,
) -> None:
    """Compute one output row of one panel, tile by tile."""
    args = f.params[0]
    weights, bias, residual, y = f.fields(args, GroupedArgs, "weights", "bias", "residual", "y")
    kernel_h, out_h, out_w, channels = f.fields(args, GroupedArgs, "kernel_h", "out_h", "out_w", "y_channels")
    image, block, panel, number = place
    first, oh = rows
    taps = kernel_h * (form.channels * form.kernel_w * COLUMNS)
    if form.ends.y == "nchw":
        to, step, behind = f.at(sums, oh * out_w * COLUMNS), f.const(COLUMNS), residual
    else:
        at = ((image * out_h + first + oh) * out_w) * channels + _channel(f, block, number)
        to, step, behind = f.at(y, at), channels, f.at(residual, at)
    turns = (out_w + (form.pixels - 1)) // form.pixels
    for v in range(0, COLUMNS, f.lanes):
        lane = v // form.channels * form.channels if form.channels >= f.lanes else v
        with f.each(0, out_w, form.pixels) as ow:
            count = f.least(out_w - ow, form.pixels)
            a = f.at(row, ow * (form.stride_w * form.width) + lane)
            b, start = f.at(weights, panel * taps + v), f.at(bias, panel * COLUMNS + v)
            c, d = (f.at(p, ow * step + v) for p in (to, behind))
            share = f.least(oh * turns + ow // form.pixels, form.kernel_w - 1)
            ahead = f.at(weights, (panel + 1) * taps + share * (taps // form.kernel_w))
            f.call("tile", "void", args, a, b, start, c, step, d, count, ahead)


def _channel(f: Function, block: Value, number: Value) -> Value:
    """The first output channel of panel `number` of a block."""
    channels, panels = f.fields(f.params[0], GroupedArgs, "y_channels", "panels")
    return f.least(block * panels * COLUMNS, channels - panels * COLUMNS) + number * COLUMNS


def _write_tile(module: Module, form: GroupedForm) -> None:
    """`tile`: adjacent pixels of one row times a vector of output channels.

    `ahead` are weights to prefetch: those of wide groups, which may not be in a cache.
    """
    params = [("args", "ptr"), ("a", "ptr"), ("b", "ptr"), ("bias", "ptr"), ("c", "ptr"), ("step", "i64")]
    params += [("residual", "ptr"), ("count", "i64"), ("ahead", "ptr")]
    with module.function("tile", params, attributes="noinline", is_exported=False) as f:
        args, a, b, bias, c, step, residual, count, ahead = f.params
        kernel_h, dilation, columns, low, high = f.fields(
            args, GroupedArgs, "kernel_h", "dilation_h", "columns", "low", "high"
        )
        start = f.load(f.at(bias, 0), f.vec)
        with f.loop(0, kernel_h, carry=[start] * form.pixels) as loop:
            row = f.at(a, loop.index * dilation * columns * form.width)
            taps = f.at(b, loop.index * (form.channels * form.kernel_w * COLUMNS))
            if form.channels < f.lanes:
                sums = loop.carried
                # Two channels share the loads of their pixels where all of them and some indices fit.
                is_roomy = f.isa.name == "avx512" and form.columns + 4 <= _columns_ahead(f.isa, form)
                every = 2 if is_roomy else 1
                for j in range(form.channels):
                    lanes = [i // form.channels * form.channels + j for i in range(f.lanes)]
                    sums = _tap(f, form, f.at(taps, j * form.kernel_w * COLUMNS), row, lanes, sums)
                    sums = f.pin(sums) if j % every == every - 1 else sums
                loop.carry(sums)
            else:
                with f.loop(0, form.channels, carry=loop.carried) as channel:
                    index = channel.index
                    f.prefetch(f.at(ahead, (loop.index * form.channels + index) * COLUMNS), level=2)
                    here = f.at(taps, index * (form.kernel_w * COLUMNS))
                    channel.carry(_tap(f, form, here, f.at(row, index), None, channel.carried))
                loop.carry(channel.carried)
        bounds = f.splat(low), f.splat(high)
        for i, total in enumerate(loop.carried):
            with f.when(count > i):
                if form.ends.y == "nhwc":
                    if form.ends.has_residual:
                        total = total + f.load(f.at(residual, step * i), f.vec)
                    total = ACTIVATIONS[form.ends.activation](f, total, *bounds)
                f.store(total, f.at(c, step * i))
        f.ret()


def _tap(
    f: Function, form: GroupedForm, taps: Value, row: Value, lanes: list[int] | None, sums: list[Value]
) -> list[Value]:
    """`sums` after one channel of all groups and one row of their windows.

    A pixel's vector is permuted to `lanes`; without `lanes`, all lanes belong to one group and share one
    number.
    """
    now, ahead = list(sums), _columns_ahead(f.isa, form)
    is_in_memory = f.isa.has_fma and f.isa.name != "neon"  # what is splat, when it is multiplied
    weights = [f.at(taps, tap * COLUMNS) for tap in range(form.kernel_w)]
    if f.isa.has_fma:
        weights = [f.load(at, f.vec) for at in weights]
    for n, (column, used) in enumerate(_products(form).items(), 1):
        at = f.at(row, column * form.width)
        x = f.splat(f.load(at)) if lanes is None else f.shuffle(f.load(at, f.vec), None, lanes)
        for tap, pixel in used:
            weight = weights[tap] if f.isa.has_fma else f.load(weights[tap], f.vec)
            now[pixel] = f.fma(x, weight, now[pixel])
        if (lanes is not None or not is_in_memory) and n % ahead == 0:
            now = f.pin(now)
    return now


def _products(form: GroupedForm) -> dict[int, list[tuple[int, int]]]:
    """By column of a row that is read, in order: the taps and pixels of a tile that it is multiplied for."""
    found: dict[int, list[tuple[int, int]]] = {}
    for tap in range(form.kernel_w):
        for pixel in range(form.pixels):
            found.setdefault(pixel * form.stride_w + tap * form.dilation_w, []).append((tap, pixel))
    return dict(sorted(found.items()))


def _columns_ahead(isa: Isa, form: GroupedForm) -> int:
    """Pixels that fit in registers beside a tile's sums and weights; without FMA weights are read again."""
    return max(isa.registers - form.pixels - form.kernel_w - 1, 1) if isa.has_fma else 1


def _finish(
    f: Function,
    form: GroupedForm,
    place: tuple[Value, Value, Value],
    first: Value,
    count: Value,
    sums: Value,
) -> None:
    """Write a band of one panel from scratch to planes of y, with residual and activation."""
    args = f.params[0]
    y, residual, channels, out_h, out_w = f.fields(
        args, GroupedArgs, "y", "residual", "y_channels", "out_h", "out_w"
    )
    low, high = f.fields(args, GroupedArgs, "low", "high")
    image, block, number = place
    plane = out_h * out_w
    at = (image * channels + _channel(f, block, number)) * plane + first * out_w

    def store(value: Value, channel: Value, pixel: Value, lanes: int) -> None:
        bounds = [f.splat(b, lanes) if lanes > 1 else b for b in (low, high)]
        to = at + channel * plane + pixel
        if form.ends.has_residual:
            value = value + f.load(f.at(residual, to), value.type)
        f.store(ACTIVATIONS[form.ends.activation](f, value, *bounds), f.at(y, to))

    pixels_to_planes(f, sums, count * out_w, COLUMNS, store)
