"""Hot tiles keep their sums in registers, on every row: cross-compiled code is searched for spills."""

import pytest

from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import AVX2, AVX512, NEON, Isa
from pliant.kernels.runtime.compile_child import compile_assembly
from tests.guards.generators import ROWS
from tests.kernels.spills import found_spills, hot_cases, inner_loops, spills


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("row", ROWS)
def test_no_tile_spills(row: str) -> None:
    """23 spilled vectors a turn cost a tile of 12 rows a third of its speed, unseen."""
    found = found_spills(ROWS[row])
    assert not found, f"vectors on the stack in inner loops: {found}"


@pytest.mark.parametrize("isa", [AVX512, AVX2, NEON], ids=lambda isa: isa.name)
def test_a_tile_that_is_too_large_is_found(isa: Isa) -> None:
    """The search itself: as many sums as there are registers do not fit beside their factors."""
    few, many = isa.registers // 2, isa.registers + 2
    assert _spills_of(isa, few) == 0
    assert _spills_of(isa, many) >= many - isa.registers


@pytest.mark.parametrize("row", ROWS)
def test_every_family_with_a_tile_is_searched(row: str) -> None:
    """Products in float32, of bytes and of codes, attention, convolutions, recurrent cells."""
    labels = " ".join(hot_cases(ROWS[row]))
    for family in ("gemm", "gemm int8", "matmul", "integer", "attention", "conv", "winograd", "lstm", "gru"):
        assert family in labels


def _spills_of(isa: Isa, n_sums: int) -> int:
    """Of a loop that carries `n_sums` vectors and multiplies them with two more."""
    module = Module(isa)
    with module.kernel("tile") as f:
        args, lo, hi, _ = f.params
        with f.loop(lo, hi, carry=[f.const(0.0, f.vec)] * n_sums) as loop:
            x = f.load(f.at(args, loop.index * f.lanes), f.vec)
            y = f.load(f.at(args, loop.index * f.lanes * 2), f.vec)
            loop.carry([f.black_box(f.fma(x, y, total)) for total in loop.carried])
        for i, total in enumerate(loop.carried):
            f.store(total, f.at(args, i * f.lanes))
    triple = isa.triple or "x86_64-unknown-linux-gnu"
    (text,) = compile_assembly([module.text()], isa.cpu, isa.features, triple)
    return max(spills(loop, isa) for loop in inner_loops(text))
