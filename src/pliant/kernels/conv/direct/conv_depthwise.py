"""Depthwise convolution, channels last, float32: one window of weights for each channel.

A unit is one output row of one image. Where windows are inside the image, several pixels are computed
together, so that weights are read once for them.
"""

import ctypes

from pliant.kernels.conv.conv_activations import ACTIVATIONS
from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.conv.direct.window import AXES, FIELDS, WindowAxis
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector

_TOGETHER = 4


class DepthwiseArgs(ctypes.Structure):
    """y = activation(conv(x, w) + bias + residual), `weights` [taps][channels], `bias` [channels].

    `x_pixel` and `y_pixel` are the pixel strides in floats. `residual`, in y's layout, may be null unless the
    form has one.
    """

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("x", "weights", "bias", "residual", "y")],
        *[(name, ctypes.c_int64) for name in ("channels", "x_pixel", "y_pixel")],
        *FIELDS,
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


def name(form: ConvForm) -> str:
    """The kernel's name."""
    return form.name.replace("conv", "depthwise", 1)


def depthwise_ir(isa: Isa, form: ConvForm) -> str:
    """The kernel `name(form)` with DepthwiseArgs."""
    module = Module(isa)
    with module.kernel(name(form)) as f:
        _, lo, hi, _ = f.params
        with f.each(lo, hi) as unit:
            _write_row(f, form, unit)
    return module.text()


def _write_row(f: Function, form: ConvForm, unit: Value) -> None:
    args = f.params[0]
    (channels,) = f.fields(args, DepthwiseArgs, "channels")
    d, h, w = (WindowAxis.of(f, args, DepthwiseArgs, axis) for axis in AXES)
    oh, rest = unit % h.out, unit // h.out
    od, image = rest % d.out, rest // d.out
    rows = (d, od, *d.taps(f, od)), (h, oh, *h.taps(f, oh))
    low, whole = w.inner_range(f, _TOGETHER)

    def pixels(ow: Value, count: int, taps: tuple[Value, Value]) -> None:
        done = f.const(0)
        narrow = [(lanes, 1) for lanes in (8, 4, 1) if lanes < f.lanes]
        for lanes, vectors in ((f.lanes, 8 // count), (f.lanes, 1), *narrow):
            step = lanes * vectors
            stop = channels - (channels - done) % step
            with f.each(done, stop, step) as channel:
                offsets = [channel + i * lanes for i in range(vectors)]
                base = image * d.size
                _write_pixels(f, form, unit, base, (*rows, (w, ow, *taps)), offsets, lanes, count)
            done = stop

    with f.each(0, low) as ow:
        pixels(ow, 1, w.taps(f, ow))
    with f.each(low, whole, _TOGETHER) as ow:
        pixels(ow, _TOGETHER, (f.const(0), w.kernel))
    with f.each(whole, w.out) as ow:
        pixels(ow, 1, w.taps(f, ow))


_TapRange = tuple[WindowAxis, Value, Value, Value]
"""An axis, the output position on it, the first tap inside and one past the last."""


def _write_pixels(
    f: Function,
    form: ConvForm,
    unit: Value,
    base: Value,
    spans: tuple[_TapRange, _TapRange, _TapRange],
    offsets: list[Value],
    lanes: int,
    count: int,
) -> None:
    """Compute `count` adjacent pixels of a row, for some vectors of channels; `base` planes precede the
    image.
    """
    args = f.params[0]
    x, weights, bias, residual, y = f.fields(args, DepthwiseArgs, "x", "weights", "bias", "residual", "y")
    channels, x_pixel, y_pixel = f.fields(args, DepthwiseArgs, "channels", "x_pixel", "y_pixel")
    low, high = f.fields(args, DepthwiseArgs, "low", "high")
    type_ = vector(lanes, "float") if lanes > 1 else "float"
    (d, od, d_first, d_end), (h, oh, h_first, h_end), (w, ow, w_first, w_end) = spans
    sums = [f.load(f.at(bias, offset), type_) for offset in offsets] * count
    with f.loop(d_first, d_end, carry=sums) as in_d:
        plane = (base + d.start(od) + in_d.index * d.dilation) * h.size
        with f.loop(h_first, h_end, carry=in_d.carried) as in_h:
            row = (plane + h.start(oh) + in_h.index * h.dilation) * w.size + w.start(ow)
            tap_row = (in_d.index * h.kernel + in_h.index) * w.kernel
            with f.loop(w_first, w_end, carry=in_h.carried) as in_w:
                source = f.at(x, (row + in_w.index * w.dilation) * x_pixel)
                window = f.at(weights, (tap_row + in_w.index) * channels)
                factors = [f.load(f.at(window, offset), type_) for offset in offsets]
                now = list(in_w.carried)
                for p in range(count):
                    pixel = f.at(source, w.stride * p * x_pixel)
                    for v, offset in enumerate(offsets):
                        n = p * len(offsets) + v
                        now[n] = f.fma(f.load(f.at(pixel, offset), type_), factors[v], now[n])
                in_w.carry(now)
            in_h.carry(in_w.carried)
        in_d.carry(in_h.carried)
    bounds = [f.splat(b, lanes) if lanes > 1 else b for b in (low, high)]
    for p in range(count):
        for v, offset in enumerate(offsets):
            total = in_d.carried[p * len(offsets) + v]
            at = (unit * w.out + ow + p) * y_pixel + offset
            if form.has_residual:
                total = total + f.load(f.at(residual, at), type_)
            f.store(ACTIVATIONS[form.activation](f, total, *bounds), f.at(y, at))
