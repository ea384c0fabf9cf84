"""Running sums and products along one dimension."""

import ctypes

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.dtypes import DTYPES, Dtype, narrow, widen
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.operations import OPERATIONS
from pliant.kernels.emit.values import Value, vector

UNIT_COLUMNS = 64

_CHAINS = 4


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
    """The kernel for `add` or `mul`, in order; a unit is up to UNIT_COLUMNS adjacent i of one o.

    Half floats are accumulated in float32.
    """
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        (inner,) = f.fields(args, CumulateArgs, "inner")
        blocks = (inner + (UNIT_COLUMNS - 1)) // UNIT_COLUMNS
        with f.each(lo, hi) as unit:
            outer, done = unit // blocks, unit % blocks * UNIT_COLUMNS
            stop = f.least(done + UNIT_COLUMNS, inner)
            for chains, lanes in ((_CHAINS, f.lanes), (1, f.lanes), (1, 0)):
                step = chains * max(lanes, 1)
                after = done + (stop - done) // step * step
                with f.each(done, after, step) as column:
                    _write_columns(f, DTYPES[dtype], operation, (outer, column), chains, lanes)
                done = after
    return module.text()


def _write_columns(
    f: Function, row: Dtype, operation: str, at: tuple[Value, Value], chains: int, lanes: int
) -> None:
    """Compute `chains` vectors of adjacent columns from (o, i) on; with 0 lanes, one column."""
    names = ("source", "target", "n", "inner", "is_reverse", "is_exclusive")
    source, target, n, inner, is_reverse, is_exclusive = f.fields(f.params[0], CumulateArgs, *names)
    is_back, is_late = is_reverse.compare("ne", 0), is_exclusive.compare("ne", 0)
    memory, register = ((vector(lanes, t) if lanes else t) for t in (row.memory, row.register))
    first = at[0] * n * inner + at[1]
    with f.loop(0, n, carry=[f.const(operation == "mul", register)] * chains) as loop:
        j = f.select(is_back, n - 1 - loop.index, loop.index)
        sums = []
        for c, before in enumerate(loop.carried):
            place = first + j * inner + c * lanes
            element = widen(f, f.load(f.at(source, place, row.memory), memory), row)
            sums.append(OPERATIONS[operation](f, row, [before, element]))
            found = f.select(is_late, before, sums[-1])
            f.store(narrow(f, found, row), f.at(target, place, row.memory))
        loop.carry(sums)
