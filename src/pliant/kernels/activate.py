"""The activation of a GEMM's epilogue, over columns of C that are in cache still. Knows no products."""

from collections.abc import Callable
from functools import partial

from pliant.kernels import vmath
from pliant.kernels.emit import Function, Module
from pliant.kernels.gemm_args import ACTIVATIONS, GemmArgs
from pliant.kernels.tile import COLUMNS
from pliant.kernels.values import Value


def write_activations(module: Module) -> None:
    """`activate(c, ldc, rows, columns, activation)`: in place, over C that is in cache still."""
    params = [("c", "ptr"), ("ldc", "i64"), ("rows", "i64"), ("columns", "i64"), ("activation", "i64")]
    with module.function("activate", params, attributes="noinline", is_exported=False) as f:
        c, ldc, rows, columns, activation = f.params

        def apply(function: Callable[[Function, Value], Value]) -> None:
            with f.each(0, rows) as row, f.each(0, columns, f.lanes) as column:
                p = f.at(c, row * ldc + column)
                f.store(function(f, f.load(p, f.vec)), p)

        functions = vmath.ACTIVATIONS
        f.match(
            activation, {ACTIVATIONS[name]: partial(apply, function) for name, function in functions.items()}
        )
        f.ret()


def activate(f: Function, args: Value, group: Value, groups: Value, n_rows: Value) -> None:
    """Call it on `groups` column groups of C from `group` on, if the GEMM has an activation."""
    c, ldc, activation = f.fields(args, GemmArgs, "c", "ldc", "activation")
    with f.when(activation.compare("ne", 0)):
        f.call("activate", "void", f.at(c, group * COLUMNS), ldc, n_rows, groups * COLUMNS, activation)
