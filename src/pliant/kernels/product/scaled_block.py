"""Convert a block of integer or half-precision weights to float32 in scratch, just before its use.

B is stored in panels [column groups][depth][16] of its own element type; a row of scales applies to some
rows.
"""

from typing import Literal, get_args

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.emit.vmath import bfloat_to_float, half_to_float
from pliant.kernels.product.matmul_args import COLUMNS, MatmulArgs, MatmulScaledArgs

WeightElement = Literal["int8", "int16", "float16", "bfloat16"]
ELEMENTS: tuple[WeightElement, ...] = get_args(WeightElement)
ELEMENT_BYTES: dict[WeightElement, int] = {"int8": 1, "int16": 2, "float16": 2, "bfloat16": 2}


def write_scaled_block(module: Module, element: WeightElement) -> None:
    """`scaled_block(args, b, group, k, n, space)`: rows k .. k + n - 1 of a column group of B, as [n][16]."""
    params = [("args", "ptr"), ("b", "ptr"), ("group", "i64"), ("k", "i64"), ("n", "i64"), ("space", "ptr")]
    integer = "i8" if element == "int8" else "i16"
    with module.function("scaled_block", params, attributes="noinline", is_exported=False) as f:
        args, b, group, k, n, space = f.params
        n_columns, depth = f.fields(args, MatmulArgs, "n_columns", "depth")
        scales, per_scale = f.fields(args, MatmulScaledArgs, "scales", "rows_per_scale")
        groups = (n_columns + (COLUMNS - 1)) // COLUMNS
        codes = f.at(b, (group * depth + k) * COLUMNS, integer)
        end = k + n
        with f.each(k // per_scale, (end + per_scale - 1) // per_scale) as step:
            before, after = step * per_scale, step * per_scale + per_scale
            first = f.select(before < k, k, before)
            last = f.select(after < end, after, end)
            at = f.at(scales, (step * groups + group) * COLUMNS)
            factors = [f.load(f.at(at, v), f.vec) for v in range(0, COLUMNS, f.lanes)]
            with f.each(first - k, last - k) as row:
                for v, factor in zip(range(0, COLUMNS, f.lanes), factors, strict=True):
                    here = row * COLUMNS + v
                    raw = f.load(f.at(codes, here, integer), vector(f.lanes, integer))
                    f.store(_as_float(f, raw, element) * factor, f.at(space, here))
        f.ret()


def _as_float(f: Function, raw: Value, element: WeightElement) -> Value:
    """Convert to float32 exactly."""
    if element == "float16":
        return half_to_float(f, raw)
    if element == "bfloat16":
        return bfloat_to_float(f, raw)
    return f.cast("sitofp", f.cast("sext", raw, vector(f.lanes, "i32")), f.vec)
