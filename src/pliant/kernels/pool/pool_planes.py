"""Pooling of small channels-first float32 images: as many planes together as a vector has lanes.

A row of such a plane is shorter than a vector, and finding its windows takes longer than pooling it. Here the
planes are turned to pixels in scratch, so that each window is found once for all of them.
"""

from functools import partial

from pliant.kernels.conv.turn_planes import pixels_of, planes_of
from pliant.kernels.conv.window import AXES, Axis
from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.pool.pool_window import PoolArgs, PoolForm, PoolWindow

_TOGETHER = 4


def scratch_bytes(isa: Isa, in_pixels: int, out_pixels: int) -> int:
    """The pixels of all planes, and those of their results."""
    return 4 * isa.lanes * (in_pixels + out_pixels)


def pool_planes_ir(isa: Isa, form: PoolForm) -> str:
    """The kernel `form.name` with PoolArgs: a unit is some planes; the last one may overlap others."""
    module = Module(isa)
    with module.kernel(form.name) as f:
        args, lo, hi, scratch = f.params
        x, y, n_planes = f.fields(args, PoolArgs, "x", "y", "channels")
        d, h, w = (Axis.of(f, args, PoolArgs, axis) for axis in AXES)
        plane, out_plane = d.size * h.size * w.size, d.out * h.out * w.out
        results = f.at(scratch, plane * f.lanes)
        with f.each(lo, hi) as unit:
            first = f.least(unit * f.lanes, n_planes - f.lanes)
            pixels_of(f, f.at(x, first * plane), plane, plane, f.lanes, scratch)
            with f.each(0, d.out) as od, f.each(0, h.out) as oh:
                rows = d.taps(f, od), h.taps(f, oh)
                row = f.at(results, (od * h.out + oh) * w.out * f.lanes)
                low, whole = w.whole(f, _TOGETHER)

                def pool(ow: Value, count: int, taps: tuple[Value, Value]) -> None:
                    window = PoolWindow(f, form, (d, h, w), (od, oh, ow), scratch, f.const(f.lanes))
                    offsets = [w.stride * (i * f.lanes) for i in range(count)]
                    loads = [partial(f.load, type_=f.vec)] * count
                    for i, (value, _) in enumerate(window.reduce((*rows, taps), loads, offsets, f.lanes)):
                        f.store(value, f.at(row, (ow + i) * f.lanes))

                with f.each(0, low) as ow:
                    pool(ow, 1, w.taps(f, ow))
                with f.each(low, whole, _TOGETHER) as ow:
                    pool(ow, _TOGETHER, (f.const(0), w.kernel))
                with f.each(whole, w.out) as ow:
                    pool(ow, 1, w.taps(f, ow))
            to = f.at(y, first * out_plane)

            def store(value: Value, channel: Value, pixel: Value, lanes: int, to: Value = to) -> None:
                f.store(value, f.at(to, channel * out_plane + pixel))

            planes_of(f, results, out_plane, f.lanes, store)
    return module.text()
