"""Running sums and products along one dimension. Know dtypes and strides, no operator."""

import ctypes

from pliant.kernels.dtypes import DTYPES, narrow, widen
from pliant.kernels.emit import Module
from pliant.kernels.isa import Isa
from pliant.kernels.operations import OPERATIONS


class CumulateArgs(ctypes.Structure):
    """target[o, j, i] = all of source[o, :j + 1, i] combined; both dense [outer, n, inner].

    From the back if `is_reverse`; without the element itself if `is_exclusive` (0 or 1, both).
    """

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("is_reverse", ctypes.c_int64),
        ("is_exclusive", ctypes.c_int64),
    )


def cumulate_ir(isa: Isa, name: str, dtype: str, operation: str) -> str:
    """`add` or `mul`; a unit is one (o, i), in order. Half floats are carried in float32."""
    row = DTYPES[dtype]
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        source, target, n, inner = f.fields(args, CumulateArgs, "source", "target", "n", "inner")
        is_reverse, is_exclusive = f.fields(args, CumulateArgs, "is_reverse", "is_exclusive")
        is_back, is_late = is_reverse.compare("ne", 0), is_exclusive.compare("ne", 0)
        start = f.const(0 if operation == "add" else 1, row.register)
        with f.each(lo, hi) as u:
            at = u // inner * n * inner + u % inner
            with f.loop(0, n, carry=[start]) as turn:
                j = f.select(is_back, n - 1 - turn.index, turn.index)
                place = at + j * inner
                element = widen(f, f.load(f.at(source, place, row.memory), row.memory), row)
                before = turn.carried[0]
                after = OPERATIONS[operation](f, row, [before, element])
                found = narrow(f, f.select(is_late, before, after), row)
                f.store(found, f.at(target, place, row.memory))
                turn.carry([after])
    return module.text()
