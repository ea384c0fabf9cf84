"""Split panels of float32 that are packed in a run into pairs of bfloat16, for products in tiles."""

import ctypes

from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.product.bf16_pairs import store_parts
from pliant.kernels.product.matmul_args import COLUMNS

SPLIT_PANELS = "split_panels"


class SplitPanelsArgs(ctypes.Structure):
    """`x`, float32 panels [depth][16], to [depth / 2][16] words of two bfloat16; the depth is even.

    The words of the remainders are `part_words` after those of the nearest. A unit is a panel.
    """

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("words", ctypes.c_void_p),
        ("depth", ctypes.c_int64),
        ("part_words", ctypes.c_int64),
    )


def split_panels_ir(isa: Isa) -> str:
    """The kernel `split_panels` with SplitPanelsArgs."""
    assert isa.has_tiles, isa.name
    module = Module(isa)
    write_split_block(module)
    with module.kernel(SPLIT_PANELS) as f:
        args, lo, hi, _ = f.params
        x, words, depth, part_words = f.fields(args, SplitPanelsArgs, "x", "words", "depth", "part_words")
        with f.each(lo, hi) as panel:
            upper = f.at(words, panel * (depth >> 1) * COLUMNS)
            parts = upper, f.at(upper, part_words)
            f.call("split_block", "void", f.at(x, panel * depth * COLUMNS), depth, *parts)
    return module.text()


def write_split_block(module: Module) -> None:
    """`split_block(x, n, upper, lower)`: [n][16] floats as [n / 2][16] pairs of each part."""
    params = [("x", "ptr"), ("n", "i64"), ("upper", "ptr"), ("lower", "ptr")]
    with module.function("split_block", params, attributes="noinline", is_exported=False) as f:
        x, n, upper, lower = f.params
        last = n >> 1

        def store(pair: Value, is_whole: bool) -> None:
            for v in range(0, COLUMNS, f.lanes):
                here = f.at(x, pair * (2 * COLUMNS) + v)
                second = f.load(f.at(here, COLUMNS), f.vec) if is_whole else f.const(0.0, f.vec)
                places = [f.at(part, pair * COLUMNS + v) for part in (upper, lower)]
                store_parts(f, [f.load(here, f.vec), second], places)

        with f.each(0, last) as pair:
            store(pair, True)
        with f.when((n & 1).compare("ne", 0)):
            store(last, False)
        f.ret()
