"""Determinants by elimination with the largest pivot, in float64."""

import ctypes

from pliant.kernels.emit import vmath
from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.dtypes import DTYPES, convert, narrow, widen
from pliant.kernels.emit.isa import Isa


class DeterminantArgs(ctypes.Structure):
    """target[u] = determinant of the n x n matrix source[u], both dense."""

    _fields_ = (("source", ctypes.c_void_p), ("target", ctypes.c_void_p), ("n", ctypes.c_int64))


def determinant_ir(isa: Isa, name: str, dtype: str) -> str:
    """The kernel with DeterminantArgs; a unit is one matrix; scratch is 8 * n * n bytes."""
    row, wide = DTYPES[dtype], DTYPES["float64"]
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, work = f.params
        source, target, n = f.fields(args, DeterminantArgs, "source", "target", "n")
        with f.each(lo, hi) as u:
            count = n * n
            with f.each(0, count) as i:
                raw = widen(f, f.load(f.at(source, u * count + i, row.memory), row.memory), row)
                value = raw if raw.type == "double" else f.cast("fpext", raw, "double")
                f.store(value, f.at(work, i, "double"))
            with f.loop(0, n, carry=[f.const(1.0, "double")]) as loop:
                c = loop.index
                with f.loop(c, n, carry=[c, f.const(-1.0, "double")]) as search:
                    entry = f.load(f.at(work, search.index * n + c, "double"), "double")
                    size = vmath.magnitude(f, entry)
                    is_larger = search.carried[1] < size
                    search.carry(
                        [
                            f.select(is_larger, search.index, search.carried[0]),
                            f.select(is_larger, size, search.carried[1]),
                        ]
                    )
                best = search.carried[0]
                with f.each(c, n) as j:
                    above, below = f.at(work, c * n + j, "double"), f.at(work, best * n + j, "double")
                    upper, lower = f.load(above, "double"), f.load(below, "double")
                    f.store(lower, above)
                    f.store(upper, below)
                pivot = f.load(f.at(work, c * n + c, "double"), "double")
                with f.each(c + 1, n) as i:
                    entry = f.load(f.at(work, i * n + c, "double"), "double")
                    is_zero = pivot.compare("eq", 0.0)
                    share = f.select(is_zero, f.const(0.0, "double"), entry / pivot)
                    with f.each(c, n) as j:
                        at = f.at(work, i * n + j, "double")
                        above = f.load(f.at(work, c * n + j, "double"), "double")
                        f.store(f.load(at, "double") - share * above, at)
                signed = f.select(best.compare("eq", c), pivot, -pivot)
                loop.carry([loop.carried[0] * signed])
            result = loop.carried[0]
            if row.register != "double":
                result = convert(f, result, wide, DTYPES["float32"])
            f.store(narrow(f, result, row), f.at(target, u, row.memory))
    return module.text()
