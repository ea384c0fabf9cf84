"""A nest of loops whose trip counts and strides are run-time arguments.

One unit is a block of the second-innermost loop, of `m` iterations, at one position of the outer loops; the
kernel runs the innermost loop of `n` iterations. All strides are in bytes and may be zero or negative.
"""

import ctypes

from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value

OUTER = 6
"""The most loops around the two inner ones."""

_Strides = ctypes.c_int64 * OUTER


class Nest(ctypes.Structure):
    """`n_outer` loops, innermost first, around blocks of `block` of the `m` iterations, around `n`
    iterations.

    `source_...` and `target_...` are the strides of the two tensors that a kernel walks over.
    """

    _fields_ = (
        ("n_outer", ctypes.c_int64),
        ("dims", _Strides),
        ("source_outer", _Strides),
        ("target_outer", _Strides),
        ("m", ctypes.c_int64),
        ("source_m", ctypes.c_int64),
        ("target_m", ctypes.c_int64),
        ("block", ctypes.c_int64),
        ("n_blocks", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("source_n", ctypes.c_int64),
        ("target_n", ctypes.c_int64),
    )


def locate_unit(f: Function, nest: Value, number: Value) -> tuple[Value, Value, Value, Value]:
    """Byte offsets in source and target of a unit's first iteration; its first iteration of `m`, and one past
    its last.
    """
    n_outer, m, block, n_blocks = f.fields(nest, Nest, "n_outer", "m", "block", "n_blocks")
    source_m, target_m = f.fields(nest, Nest, "source_m", "target_m")
    first = number % n_blocks * block
    zero = f.const(0)
    with f.loop(0, n_outer, carry=[number // n_blocks, zero, zero]) as loop:
        rest, source, target = loop.carried
        dim, source_stride, target_stride = (
            f.load(f.at(f.at(nest, getattr(Nest, name).offset, "i8"), loop.index, "i64"), "i64")
            for name in ("dims", "source_outer", "target_outer")
        )
        quotient = rest // dim
        index = rest - quotient * dim
        loop.carry([quotient, source + index * source_stride, target + index * target_stride])
    _, source, target = loop.carried
    return source + first * source_m, target + first * target_m, first, f.least(first + block, m)
