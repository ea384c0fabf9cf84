"""Sums of products with the row of the result as the innermost loop: order i-k-j, float32, two operands.

The other order, i-j-k, is kernels/product/contract.py; the arguments are the same.
"""

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.product.contract import OUT_DIMS, SUM_DIMS, ContractArgs, element

CONTRACT_ROWS = "contract_rows"
"""The kernel's name."""

_DIMS = OUT_DIMS + SUM_DIMS


def contract_rows_ir(isa: Isa) -> str:
    """The kernel ROWS: out = alpha * sum of a * b; a unit is a row, which stays in cache during the sums."""
    module = Module(isa)
    _write_add(module)
    with module.kernel(CONTRACT_ROWS) as f:
        args, lo, hi, _ = f.params
        (out,) = f.fields(args, ContractArgs, "out")
        n = element(f, args, "extents", OUT_DIMS - 1)
        a, b = (f.load(f.at(args, ContractArgs.operands.offset + 8 * i, "i8"), "ptr") for i in (0, 1))
        with f.each(lo, hi) as unit:
            row = f.at(out, unit * n)
            with f.each(0, n) as j:
                f.store(f.const(0.0, "float"), f.at(row, j))
            start_a, start_b = _starts(f, args, unit)
            _sum(f, args, 0, f.at(a, start_a), f.at(b, start_b), row)
    return module.text()


def _starts(f: Function, args: Value, unit: Value) -> list[Value]:
    """Address of a row in both operands."""
    starts, left = [f.const(0)] * 2, unit
    for d in reversed(range(OUT_DIMS - 1)):
        extent = element(f, args, "extents", d)
        index = left % extent
        left = left // extent
        starts = [s + index * element(f, args, "strides", i * _DIMS + d) for i, s in enumerate(starts)]
    return starts


def _sum(f: Function, args: Value, d: int, a: Value, b: Value, row: Value) -> None:
    """Loops over the summed dimensions from `d` on; each iteration adds to the whole row."""
    if d == SUM_DIMS:
        f.call("add_row", "void", args, a, b, row)
        return
    steps = [element(f, args, "strides", i * _DIMS + OUT_DIMS + d) for i in (0, 1)]
    with f.each(0, element(f, args, "extents", OUT_DIMS + d)) as k:
        _sum(f, args, d + 1, f.at(a, k * steps[0]), f.at(b, k * steps[1]), row)


def _write_add(module: Module) -> None:
    """`add_row(args, a, b, row)`: row[j] += alpha * a[j] * b[j]; vectors if one of them is a scalar."""
    params = [("args", "ptr"), ("a", "ptr"), ("b", "ptr"), ("row", "ptr")]
    with module.function("add_row", params, attributes="noinline", is_exported=False) as f:
        args, a, b, row = f.params
        n = element(f, args, "extents", OUT_DIMS - 1)
        (alpha,) = f.fields(args, ContractArgs, "alpha")
        step_a, step_b = (element(f, args, "strides", i * _DIMS + OUT_DIMS - 1) for i in (0, 1))
        is_b = step_a.compare("eq", 0) & step_b.compare("eq", 1)
        is_a = step_b.compare("eq", 0) & step_a.compare("eq", 1)
        number, values = f.select(is_b, a, b), f.select(is_b, b, a)
        whole = f.select(is_b | is_a, n & -f.lanes, f.const(0))
        factor = f.load(number) * alpha
        wide = f.splat(factor)
        with f.each(0, whole, f.lanes) as j:
            here = f.at(row, j)
            f.store(f.fma(wide, f.load(f.at(values, j), f.vec), f.load(here, f.vec)), here)
        with f.each(whole, n) as j:
            here = f.at(row, j)
            term = f.load(f.at(a, j * step_a)) * alpha * f.load(f.at(b, j * step_b))
            f.store(f.load(here) + term, here)
        f.ret()
