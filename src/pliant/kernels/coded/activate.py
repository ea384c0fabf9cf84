"""The activation in a GEMM's epilogue, on columns of C while they are in cache."""

from collections.abc import Callable
from functools import partial

from pliant.kernels.coded.gemm_args import ACTIVATIONS
from pliant.kernels.emit import vmath
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.values import Value


def write_activations(module: Module) -> None:
    """`activate(c, ldc, rows, columns, activation)`: applies it in place to C."""
    params = [("c", "ptr"), ("ldc", "i64"), ("rows", "i64"), ("columns", "i64"), ("activation", "i64")]
    with module.function("activate", params, attributes="noinline", is_exported=False) as f:
        c, ldc, rows, columns, activation = f.params

        def apply(function: Callable[[Function, Value], Value]) -> None:
            with f.each(0, rows) as row, f.each(0, columns, f.lanes) as column:
                p = f.at(c, row * ldc + column)
                # Opaque, else LLVM turns in-place relu into a masked store, which is ten times slower on some
                # CPUs.
                f.store(function(f, f.black_box(f.load(p, f.vec))), p)

        functions = vmath.ACTIVATIONS
        f.match(
            activation, {ACTIVATIONS[name]: partial(apply, function) for name, function in functions.items()}
        )
        f.ret()


def activate(f: Function, c: Value, ldc: Value, rows: Value, columns: Value, activation: Value) -> None:
    """Apply `GemmArgs.activation` in place to [rows, columns] of C, if it names one."""
    with f.when(activation.compare("ne", 0)):
        f.call("activate", "void", c, ldc, rows, columns, activation)
