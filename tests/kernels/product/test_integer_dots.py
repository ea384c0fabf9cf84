"""Products use the instruction that a row promises, which no machine here may have."""

import re

import llvmlite.binding as llvm
import pytest

from pliant.kernels.coded.gemm_bf16 import gemm_bf16_ir
from pliant.kernels.coded.int8.gemm_int8 import gemm_int8_ir
from pliant.kernels.emit.isa import (
    AVX2,
    AVX2_VNNI,
    AVX512,
    AVX512_AMX,
    AVX512_BF16,
    AVX512_VBMI,
    AVX512_VNNI,
    NEON,
    NEON_BF16,
    NEON_DOT,
    NEON_I8MM,
    X86_64,
    Isa,
)
from pliant.kernels.product.matmul_integer import IntegerForm, choose_form, matmul_integer_ir

_ROWS = {
    "vnni": (AVX512_VNNI, "vpdpbusd", "zmm"),
    "avx-vnni": (AVX2_VNNI, "vpdpbusd", "ymm"),
    "neon-dot": (NEON_DOT, "sdot", "v"),
}


def assembly(text: str, isa: Isa) -> str:
    """What LLVM makes of a module for `isa`."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = isa.triple
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=isa.cpu, features=isa.features, opt=2)
    module = llvm.parse_assembly(text)
    module.triple = triple
    module.verify()
    made: str = machine.emit_assembly(module)
    return made


@pytest.mark.parametrize("row", _ROWS)
def test_rows_that_multiply_bytes_do_so(row: str) -> None:
    """ONNX's products and those of coded weights: one instruction for four products a lane."""
    isa, instruction, register = _ROWS[row]
    assert choose_form(isa, fits_bytes=True) is IntegerForm.BYTES
    for text in (matmul_integer_ir(isa, IntegerForm.BYTES, is_float=True), gemm_int8_ir(isa)):
        lines = [line for line in assembly(text, isa).splitlines() if f"\t{instruction}\t" in line]
        assert len(lines) >= 16
        assert all(register in line for line in lines)


@pytest.mark.parametrize("isa", [AVX512, AVX2, X86_64, NEON], ids=lambda isa: isa.name)
def test_the_others_widen_bytes(isa: Isa) -> None:
    """Weights are a byte each on every row; what does not fit one is two."""
    assert choose_form(isa, fits_bytes=True) is IntegerForm.WIDENED
    assert choose_form(isa, fits_bytes=False) is IntegerForm.WORDS
    text = assembly(matmul_integer_ir(isa, IntegerForm.WIDENED, is_float=False), isa)
    assert ("pmaddwd" in text) == (isa is not NEON)
    assert ("smull" in text) == (isa is NEON)


def test_tiles_of_coded_weights_multiply_two_rows_at_once_on_arm() -> None:
    """Two rows and two columns in one instruction; a last row has none beside it."""
    made = assembly(gemm_int8_ir(NEON_I8MM), NEON_I8MM)
    counts = {rows: _tile(made, rows).count("\tsmmla\t") for rows in range(1, 5)}
    assert counts == {1: 0, 2: 16, 3: 16, 4: 16}
    assert "tile8_1_5" not in made


def test_integer_products_multiply_two_rows_at_once_on_arm() -> None:
    """Two rows and two columns in one instruction; a last row and the last words have none beside them."""
    made = assembly(matmul_integer_ir(NEON_I8MM, IntegerForm.BYTES, is_float=True), NEON_I8MM)
    counts = {rows: _function(made, f"tile_{rows}").count("\tsmmla\t") for rows in range(1, 7)}
    assert counts == {rows: 16 * (rows // 2) for rows in counts}


@pytest.mark.parametrize("isa", [NEON_DOT, NEON_I8MM], ids=["dot", "i8mm"])
def test_no_tile_of_coded_weights_spills_on_arm(isa: Isa) -> None:
    """A sum that goes to the stack and back takes longer than the product that it waits for."""
    made = assembly(gemm_int8_ir(isa), isa)
    tiles = [_tile(made, rows) for rows in range(1, 7) if f"tile8_1_{rows}:" in made]
    assert len(tiles) >= 4
    for tile in tiles:
        assert not re.search(r"\bq\d+.*\[sp", tile)


@pytest.mark.parametrize("isa", [AVX512_VBMI, AVX512_BF16, AVX512_AMX], ids=["vbmi", "bf16", "amx"])
def test_codes_are_looked_up_by_permutes_of_bytes(isa: Isa) -> None:
    """At every number of bits, before tiles and in flight for a few rows, for products of int8 and bf16."""
    int8 = assembly(gemm_int8_ir(isa), isa)
    names = [*(f"fill8_{bits}" for bits in range(1, 7)), *(f"row8_{rows}" for rows in range(1, 9))]
    assert all(_function(int8, name).count("\tvpermb\t") >= 8 for name in names)
    if isa.has_bf16:
        bf16 = assembly(gemm_bf16_ir(isa), isa)
        assert all(_function(bf16, f"fill{bits}").count("\tvpermb\t") >= 16 for bits in range(1, 7))


def test_vnni_alone_has_no_permutes_of_bytes() -> None:
    """Cascade Lake has VNNI without VBMI, and would stop at one."""
    assert "\tvpermb\t" not in assembly(gemm_int8_ir(AVX512_VNNI), AVX512_VNNI)


@pytest.mark.parametrize("isa", [AVX512_BF16, AVX512_AMX], ids=["bf16", "amx"])
def test_tiles_multiply_pairs_of_bfloat16(isa: Isa) -> None:
    """Each row times 16 or 48 columns takes one instruction per 16 columns and pair of K."""
    made = assembly(gemm_bf16_ir(isa), isa)
    for rows in range(1, 9):
        for vectors in (1, 3):
            tile = _function(made, f"tile_{rows}x{vectors}")
            n = len(re.findall(r"\tvdpbf16ps\t.*%zmm", tile))
            assert n >= 4 * rows * vectors
            assert n % (rows * vectors) == 0
            assert "\tvfmadd" not in tile


def test_tiles_multiply_two_rows_of_bfloat16_at_once_on_arm() -> None:
    """Two rows and two columns in one instruction; a last row of an odd number has none beside it."""
    made = assembly(gemm_bf16_ir(NEON_BF16), NEON_BF16)
    counts = {rows: _function(made, f"tile_{rows}x1").count("\tbfmmla\t") for rows in range(1, 7)}
    assert counts == {rows: 16 * (rows // 2) for rows in counts}


def _tile(made: str, rows: int) -> str:
    """The code of one tile of coded weights in int8."""
    return _function(made, f"tile8_1_{rows}")


def _function(made: str, name: str) -> str:
    start = made.index(f"\n{name}:")
    return made[start : made.index(".Lfunc_end", start)]
