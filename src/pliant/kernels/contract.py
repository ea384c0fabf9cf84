"""Sums of products over any strides, for every number type: slow and general. Knows no operator.

out[o] = alpha * sum over r of the product of all operands at (o, r) + beta * c[o]. Matrix products of
other types than float32, and what no tile can walk, end here.
"""

import ctypes

from pliant.kernels.dtypes import DTYPES, Dtype, narrow, widen
from pliant.kernels.emit import Function, Module
from pliant.kernels.isa import Isa
from pliant.kernels.values import Value

OUT_DIMS, SUM_DIMS, MAX_OPERANDS = 8, 4, 4


class ContractArgs(ctypes.Structure):
    """Extents not used are 1 and stand first; strides in elements, [operand][OUT_DIMS + SUM_DIMS].

    A unit is a row: all of the last output dimension. `c` may be null. Integers take alpha and beta as 1.
    """

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("c", ctypes.c_void_p),
        ("operands", ctypes.c_void_p * MAX_OPERANDS),
        ("extents", ctypes.c_int64 * (OUT_DIMS + SUM_DIMS)),
        ("strides", ctypes.c_int64 * (MAX_OPERANDS * (OUT_DIMS + SUM_DIMS))),
        ("c_strides", ctypes.c_int64 * OUT_DIMS),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
    )


def contract_name(dtype: str, n_operands: int) -> str:
    """The kernel's name."""
    return f"contract{n_operands}_{dtype}"


def contract_ir(isa: Isa, dtype: str, n_operands: int) -> str:
    """The kernel `contract_name(...)` with ContractArgs over `n_operands` operands and `out` of `dtype`."""
    type_ = DTYPES[dtype]
    module = Module(isa)
    with module.kernel(contract_name(dtype, n_operands)) as f:
        args, lo, hi, _ = f.params
        out, c = f.fields(args, ContractArgs, "out", "c")
        n = _element(f, args, "extents", OUT_DIMS - 1)
        operands = [_pointer(f, args, i) for i in range(n_operands)]
        with f.each(lo, hi) as unit:
            starts, start_c = _row_start(f, args, unit, n_operands)
            with f.each(0, n) as j:
                here = []
                for i, (x, start) in enumerate(zip(operands, starts, strict=True)):
                    step = _element(f, args, "strides", i * (OUT_DIMS + SUM_DIMS) + OUT_DIMS - 1)
                    here.append(f.at(x, start + j * step, type_.memory))
                total = _sum(f, args, here, type_)
                step_c = _element(f, args, "c_strides", OUT_DIMS - 1)
                total = _finish(f, args, total, f.at(c, start_c + j * step_c, type_.memory), c, type_)
                f.store(narrow(f, total, type_), f.at(out, unit * n + j, type_.memory))
    return module.text()


def _row_start(f: Function, args: Value, unit: Value, n_operands: int) -> tuple[list[Value], Value]:
    """Where a row begins in each operand, and in c, in elements."""
    starts, start_c = [f.const(0)] * n_operands, f.const(0)
    left = unit
    for d in reversed(range(OUT_DIMS - 1)):
        extent = _element(f, args, "extents", d)
        index = left % extent
        left = left // extent
        for i in range(n_operands):
            starts[i] = starts[i] + index * _element(f, args, "strides", i * (OUT_DIMS + SUM_DIMS) + d)
        start_c = start_c + index * _element(f, args, "c_strides", d)
    return starts, start_c


def _sum(f: Function, args: Value, operands: list[Value], type_: Dtype) -> Value:
    """The sum over all of the summed dimensions, loops nested."""

    def over(d: int, here: list[Value], total: Value) -> Value:
        if d == SUM_DIMS:
            terms = [widen(f, f.load(p, type_.memory), type_) for p in here]
            product = terms[0]
            for term in terms[1:]:
                product = product * term
            return total + product
        extent = _element(f, args, "extents", OUT_DIMS + d)
        steps = [
            _element(f, args, "strides", i * (OUT_DIMS + SUM_DIMS) + OUT_DIMS + d) for i in range(len(here))
        ]
        with f.loop(0, extent, carry=[total]) as turn:
            inner = [f.at(p, turn.index * s, type_.memory) for p, s in zip(here, steps, strict=True)]
            turn.carry([over(d + 1, inner, turn.carried[0])])
        return turn.carried[0]

    return over(0, operands, f.const(0, type_.register))


def _finish(f: Function, args: Value, total: Value, c_here: Value, c: Value, type_: Dtype) -> Value:
    """alpha * total + beta * c."""
    alpha, beta = f.fields(args, ContractArgs, "alpha", "beta")
    if type_.register == "double":
        alpha, beta = (f.cast("fpext", x, "double") for x in (alpha, beta))
    if type_.kind == "float":
        total = total * alpha

    def with_c() -> list[Value]:
        x = widen(f, f.load(c_here, type_.memory), type_)
        return [total + (x * beta if type_.kind == "float" else x)]

    return f.choose(c.compare("ne", 0), with_c, lambda: [total])[0]


def _pointer(f: Function, args: Value, i: int) -> Value:
    return f.load(f.at(args, ContractArgs.operands.offset + 8 * i, "i8"), "ptr")


def _element(f: Function, args: Value, field: str, i: int) -> Value:
    return f.load(f.at(args, getattr(ContractArgs, field).offset + 8 * i, "i8"), "i64")
