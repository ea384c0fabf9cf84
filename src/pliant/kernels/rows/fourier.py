"""Discrete Fourier transforms of short signals, by their definition: n * n multiplications.

Sums are float64.
"""

import ctypes

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.dtypes import DTYPES, convert, narrow, widen
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value


class FourierArgs(ctypes.Structure):
    """target[o, k, i] = scale * sum over j < used of window[j] * source[o, j, i] * root[j * k % length].

    Elements are `parts` numbers (1 real, 2 complex) in the source, `out_parts` in the dense target
    [outer, n, inner]. The source offset of o is `batch_stride` * (o / frames) + `frame_stride` * (o %
    frames), and j has the stride `stride`, all in numbers. `roots` are float64 pairs; `window` may be null.
    If `is_mirrored`, the source also has the conjugates of its elements at length - j.
    """

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("roots", ctypes.c_void_p),
        ("window", ctypes.c_void_p),
        ("frames", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("frame_stride", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("used", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("parts", ctypes.c_int64),
        ("out_parts", ctypes.c_int64),
        ("is_mirrored", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


def fourier_ir(isa: Isa, name: str, dtype: str) -> str:
    """The kernel with FourierArgs; a unit is one (o, k)."""
    row = DTYPES[dtype]
    wide = DTYPES["float64"]
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        source, target, window, stride, length, used, n, inner = f.fields(
            args, FourierArgs, "source", "target", "window", "stride", "length", "used", "n", "inner"
        )
        parts, out_parts, is_mirrored, scale = f.fields(
            args, FourierArgs, "parts", "out_parts", "is_mirrored", "scale"
        )
        has_window = f.cast("ptrtoint", window, "i64").compare("ne", 0)
        roots = f.fields(args, FourierArgs, "roots")[0]
        factor = f.cast("fpext", scale, "double")
        zero = f.const(0.0, "double")

        def number(place: Value) -> Value:
            raw = widen(f, f.load(f.at(source, place, row.memory), row.memory), row)
            return raw if raw.type == "double" else f.cast("fpext", raw, "double")

        with f.each(lo, hi) as u, f.each(0, inner) as i:
            k = u % n
            start = _start(f, args, u // n) + i * parts
            with f.loop(0, used, carry=[zero, zero, f.const(0)]) as loop:
                real, imaginary, t = loop.carried
                j = loop.index
                at = start + j * stride
                is_real = parts.compare("eq", 1)
                a = number(at)
                b = f.select(is_real, zero, number(f.select(is_real, at, at + 1)))
                is_twice = is_mirrored.compare("ne", 0) & (j > 0) & (j * 2).compare("ne", length)
                weight = f.select(is_twice, f.const(2.0, "double"), f.const(1.0, "double"))
                weight = weight * _window(f, has_window, window, j, dtype)
                c, s = (f.load(f.at(roots, t * 2 + part, "double"), "double") for part in (0, 1))
                turned = t + k
                loop.carry(
                    [
                        real + (a * c - b * s) * weight,
                        imaginary + (a * s + b * c) * weight,
                        f.select(turned < length, turned, turned - length),
                    ]
                )
            place = (u * inner + i) * out_parts
            results = [x * factor for x in loop.carried[:2]]
            if row.register != "double":
                results = [convert(f, x, wide, DTYPES["float32"]) for x in results]
            f.store(narrow(f, results[0], row), f.at(target, place, row.memory))
            with f.when(out_parts.compare("eq", 2)):
                f.store(narrow(f, results[1], row), f.at(target, place + 1, row.memory))
    return module.text()


def _start(f: Function, args: Value, o: Value) -> Value:
    frames, batch, frame = f.fields(args, FourierArgs, "frames", "batch_stride", "frame_stride")
    return o // frames * batch + o % frames * frame


def _window(f: Function, has_window: Value, window: Value, j: Value, dtype: str) -> Value:
    row = DTYPES[dtype]

    def given() -> list[Value]:
        value = widen(f, f.load(f.at(window, j, row.memory), row.memory), row)
        return [value if value.type == "double" else f.cast("fpext", value, "double")]

    return f.choose(has_window, given, lambda: [f.const(1.0, "double")])[0]
