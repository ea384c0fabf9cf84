"""Sums of products over any strides, for every number type: slow and general.

out[o] = alpha * sum over r of the product of all operands at (o, r) + beta * c[o]. It computes matrix
products of types other than float32, and strides that no tile supports.
"""

import ctypes
from dataclasses import dataclass

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.dtypes import DTYPES, Dtype, narrow, widen
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector

OUT_DIMS, SUM_DIMS, MAX_OPERANDS = 8, 4, 4

_CHAINS = 4


class ContractArgs(ctypes.Structure):
    """Unused extents are 1 and come first; strides in elements, [operand][OUT_DIMS + SUM_DIMS].

    A unit is a row: all of the last output dimension. `c` may be null. For integers alpha and beta are 1.
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


def contract_name(dtype: str, n_operands: int, pattern: str = "") -> str:
    """The kernel's name."""
    return "_".join([f"contract{n_operands}", dtype, *[pattern] * bool(pattern)])


def contract_ir(isa: Isa, dtype: str, n_operands: int, pattern: str = "") -> str:
    """The kernel `contract_name(...)` with ContractArgs over `n_operands` operands and `out` of `dtype`.

    `pattern` says how each operand, and c after them, varies along a row: `c` contiguous or `s` one value.
    With a pattern, adjacent outputs are computed as vectors; without one they are not. The order of sums is
    the same in both.
    """
    type_ = DTYPES[dtype]
    module = Module(isa)
    with module.kernel(contract_name(dtype, n_operands, pattern)) as f:
        args, lo, hi, _ = f.params
        out, c = f.fields(args, ContractArgs, "out", "c")
        n = element(f, args, "extents", OUT_DIMS - 1)
        operands = [_pointer(f, args, i) for i in range(n_operands)]
        ways = ((_CHAINS, f.lanes), (1, f.lanes), (1, 0)) if pattern else ((1, 0),)
        with f.each(lo, hi) as unit:
            starts, start_c = _row_start(f, args, unit, n_operands)
            done = f.const(0)
            for chains, lanes in ways:
                step = chains * max(lanes, 1)
                stop = done + (n - done) // step * step
                with f.each(done, stop, step) as j:
                    here = []
                    for i, (x, start) in enumerate(zip(operands, starts, strict=True)):
                        along = element(f, args, "strides", i * (OUT_DIMS + SUM_DIMS) + OUT_DIMS - 1)
                        here.append(f.at(x, start + j * along, type_.memory))
                    row = _Row(pattern or "c" * (n_operands + 1), lanes, type_)
                    totals = _sum(f, args, here, row, chains)
                    step_c = element(f, args, "c_strides", OUT_DIMS - 1)
                    here_c = f.at(c, start_c + j * step_c, type_.memory)
                    for k, total in enumerate(_finish(f, args, totals, here_c, c, row)):
                        to = f.at(out, unit * n + j + k * lanes, type_.memory)
                        f.store(narrow(f, total, type_), to)
                done = stop
    return module.text()


@dataclass(frozen=True, slots=True)
class _Row:
    """How adjacent outputs are computed: `lanes` at a time, 0 for one by one."""

    pattern: str
    lanes: int
    dtype: Dtype

    @property
    def register(self) -> str:
        return vector(self.lanes, self.dtype.register) if self.lanes else self.dtype.register

    def load(self, f: Function, place: Value, i: int, chains: int) -> list[Value]:
        """Operand i's values for `chains` vectors of outputs from `place` on."""
        memory = self.dtype.memory
        if self.lanes and self.pattern[i] == "s":
            return [f.splat(widen(f, f.load(place, memory), self.dtype))] * chains
        places = [f.at(place, k * self.lanes, memory) for k in range(chains)]
        type_ = vector(self.lanes, memory) if self.lanes else memory
        return [widen(f, f.load(p, type_), self.dtype) for p in places]


def _row_start(f: Function, args: Value, unit: Value, n_operands: int) -> tuple[list[Value], Value]:
    """Offset of a row in each operand, and in c, in elements."""
    starts, start_c = [f.const(0)] * n_operands, f.const(0)
    left = unit
    for d in reversed(range(OUT_DIMS - 1)):
        extent = element(f, args, "extents", d)
        index = left % extent
        left = left // extent
        for i in range(n_operands):
            starts[i] = starts[i] + index * element(f, args, "strides", i * (OUT_DIMS + SUM_DIMS) + d)
        start_c = start_c + index * element(f, args, "c_strides", d)
    return starts, start_c


def _sum(f: Function, args: Value, operands: list[Value], row: _Row, chains: int) -> list[Value]:
    """The sums over all summed dimensions, as nested loops."""

    def over(d: int, here: list[Value], totals: list[Value]) -> list[Value]:
        if d == SUM_DIMS:
            products, *others = (row.load(f, p, i, chains) for i, p in enumerate(here))
            for terms in others:
                products = [x * y for x, y in zip(products, terms, strict=True)]
            return [x + y for x, y in zip(totals, products, strict=True)]
        extent = element(f, args, "extents", OUT_DIMS + d)
        steps = [
            element(f, args, "strides", i * (OUT_DIMS + SUM_DIMS) + OUT_DIMS + d) for i in range(len(here))
        ]
        with f.loop(0, extent, carry=totals) as loop:
            inner = [f.at(p, loop.index * s, row.dtype.memory) for p, s in zip(here, steps, strict=True)]
            loop.carry(over(d + 1, inner, loop.carried))
        return loop.carried

    return over(0, operands, [f.const(0, row.register)] * chains)


def _finish(f: Function, args: Value, totals: list[Value], c_here: Value, c: Value, row: _Row) -> list[Value]:
    """alpha * total + beta * c."""
    is_float = row.dtype.kind == "float"
    alpha, beta = f.fields(args, ContractArgs, "alpha", "beta")
    if row.dtype.register == "double":
        alpha, beta = (f.cast("fpext", x, "double") for x in (alpha, beta))
    if row.lanes:
        alpha, beta = f.splat(alpha), f.splat(beta)
    if is_float:
        totals = [total * alpha for total in totals]

    def with_c() -> list[Value]:
        added = row.load(f, c_here, -1, len(totals))
        return [total + (x * beta if is_float else x) for total, x in zip(totals, added, strict=True)]

    return f.choose(c.compare("ne", 0), with_c, lambda: totals)


def _pointer(f: Function, args: Value, i: int) -> Value:
    return f.load(f.at(args, ContractArgs.operands.offset + 8 * i, "i8"), "ptr")


def element(f: Function, args: Value, field: str, i: int) -> Value:
    """Number `i` of an array in the arguments of a contraction."""
    return f.load(f.at(args, getattr(ContractArgs, field).offset + 8 * i, "i8"), "i64")
