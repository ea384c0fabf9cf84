"""Products in tiles: every height, width and depth, each against numpy, and the code that AMX runs."""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pliant.kernels.coded.gemm_bf16 import gemm_bf16_ir
from pliant.kernels.coded.int8.gemm_int8 import gemm_int8_ir
from pliant.kernels.conv.conv_args import ConvForm, ImageLayout
from pliant.kernels.conv.conv_bf16 import conv_tiles_ir
from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import AVX512_AMX, Isa, is_runnable
from pliant.kernels.product.matmul_integer import IntegerForm, matmul_integer_ir
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.compile_child import compile_assembly
from pliant.kernels.runtime.jit import Library
from pliant.kernels.tiles.tile_ops import TileKind
from pliant.kernels.tiles.tile_rows import (
    PANELS,
    LeftRows,
    config_space,
    multiply_in_blocks,
    multiply_rows,
    release_tiles,
    sums_bytes,
    write_tile_rows,
)
from tests.kernels.kernel_call import KERNEL, address
from tests.kernels.spills import inner_loops
from tests.kernels.tiles.amx_trap import Executed, Trap
from tests.rows import TILE_ROWS, isa_fixtures

isa, library = isa_fixtures(TILE_ROWS)

KINDS: tuple[TileKind, ...] = ("int8", "bf16")


class Args(ctypes.Structure):
    """sums (= or +=) A @ B; `part` lies between the parts of A, `beside` between column groups of B."""

    _fields_ = (
        *(("a", ctypes.c_void_p), ("b", ctypes.c_void_p), ("sums", ctypes.c_void_p)),
        *(("row", ctypes.c_int64), ("part", ctypes.c_int64), ("beside", ctypes.c_int64)),
        *(("n_rows", ctypes.c_int64), ("words", ctypes.c_int64), ("first", ctypes.c_int64)),
    )


def product_ir(isa: Isa, kind: TileKind, groups: int, parts: int, in_blocks: bool) -> str:
    module = Module(isa)
    write_tile_rows(module, kind, parts)
    with module.kernel("product") as f:
        config = config_space(f)
        a, b, sums, row, part, beside, n_rows, words, first = f.fields(
            f.params[0], Args, *(name for name, _ in Args._fields_)
        )
        columns = [f.at(b, beside * g, "i8") for g in range(groups)]
        left = LeftRows(a, row, part)
        is_first = first.compare("ne", 0)
        if in_blocks:
            multiply_in_blocks(f, kind, config, left, columns, sums, n_rows, words)
        else:
            multiply_rows(f, kind, config, left, columns, sums, n_rows, words, is_first, parts)
        release_tiles(f, config)
    return module.text()


def aligned(array: np.ndarray) -> np.ndarray:
    memory = aligned_bytes(array.nbytes)
    memory[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memory


def factors(
    kind: TileKind, shape: tuple[int, ...], seed: int, *, is_left: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers as memory has them, and what they are: a byte's, or whole ones whose sums are exact."""
    draw = np.random.default_rng(seed)
    if kind == "int8":
        bytes_ = draw.integers(0, 256, shape).astype(np.uint8)
        return bytes_, (bytes_ if is_left else bytes_.view(np.int8)).astype(np.int64)
    whole = draw.integers(-64, 65, shape).astype(np.float32)
    return (whole.view(np.uint32) >> 16).astype(np.uint16), whole.astype(np.int64)


def check(
    library: Library,
    kind: TileKind,
    rows: int,
    words: int,
    groups: int,
    *,
    parts: int = 1,
    begin: int = 0,
    in_blocks: bool = False,
) -> None:
    """Sums of the kernel equal those of integers; `begin` is what is there before, if it counts."""
    packing = 4 if kind == "int8" else 2
    depth = packing * words
    raw_a, a = factors(kind, (parts, rows, depth + packing), 1, is_left=True)  # a word more: another row's
    raw_b, b = factors(kind, (groups, words, 16, packing), 2, is_left=False)
    kinds = np.int32 if kind == "int8" else np.float32
    memory = [aligned(raw_a), aligned(raw_b), aligned_bytes(sums_bytes(rows, groups))]
    memory[2].view(kinds)[:] = begin or 7
    row, part, beside = 4 * (words + 1), 4 * (words + 1) * rows, 64 * words
    addresses = [x.ctypes.data for x in memory]
    args = Args(*addresses, row, part, beside, rows, words, int(not begin))
    KERNEL(address(library, "product", product_ir, kind, groups, parts, in_blocks))(
        ctypes.addressof(args), 0, 1, None
    )
    whole = b.transpose(1, 3, 0, 2).reshape(depth, groups * 16)
    expected = a.sum(0)[:, :depth] @ whole + begin
    blocks = memory[2].view(kinds).reshape(-1, groups, 16, 16).transpose(0, 2, 1, 3)
    got = blocks.reshape(-1, groups * 16)[:rows]
    np.testing.assert_array_equal(got, expected.astype(np.int64))


@pytest.mark.parametrize("groups", PANELS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 32, 33, 48, 70])
def test_any_number_of_rows(library: Library, kind: TileKind, rows: int, groups: int) -> None:
    """One or two rows of tiles, the last with as many rows as are left."""
    check(library, kind, rows, 24, groups)


@pytest.mark.parametrize("groups", PANELS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", [1, 8, 15, 16, 17, 32, 47, 200])
def test_any_depth(library: Library, kind: TileKind, words: int, groups: int) -> None:
    """Whole tiles along K, a narrower one, or both; nothing beyond a row is read."""
    check(library, kind, 20, words, groups)


@pytest.mark.parametrize("words", [5, 16, 21])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_go_on(library: Library, kind: TileKind, words: int) -> None:
    """Blocks of K add to what those before them left."""
    check(library, kind, 40, words, 2, begin=1000)


@pytest.mark.parametrize(("rows", "words"), [(40, 500), (33, 192), (32, 500)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_deep_matrices_are_multiplied_in_blocks(
    library: Library, kind: TileKind, groups: int, rows: int, words: int
) -> None:
    """A panel of B stays in L1 for as many rows as make that worth it."""
    check(library, kind, rows, words, groups, in_blocks=True)


@pytest.mark.parametrize("groups", PANELS)
@pytest.mark.parametrize("rows", [7, 16, 45])
def test_rows_may_be_sums_of_two_parts(library: Library, rows: int, groups: int) -> None:
    """A float32 number is nearly the sum of two of bfloat16."""
    check(library, "bf16", rows, 40, groups, parts=2)


@pytest.mark.skipif(is_runnable(AVX512_AMX), reason="this CPU counts no instructions")
@pytest.mark.skipif(AVX512_AMX not in TILE_ROWS, reason="AMX cannot be had here, not even by a handler")
@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_loads_each_factor_as_rarely_as_it_can(
    library_of: Callable[[Isa], Library], kernel_cache: Path, kind: TileKind
) -> None:
    """32 rows, 32 columns, 4 tiles along K: four products for four loads; and the registers are given up."""
    trap = Trap(kernel_cache)
    before = {what: trap.count(what) for what in Executed}
    check(library_of(AVX512_AMX), kind, 32, 64, 2)
    made = {what: trap.count(what) - before[what] for what in Executed}
    multiplied = Executed.BYTES if kind == "int8" else Executed.BFLOATS
    assert made[multiplied] == 16
    assert (made[Executed.LOADED], made[Executed.STORED], made[Executed.ZEROED]) == (16, 4, 4)
    assert (made[Executed.CONFIGURED], made[Executed.RELEASED]) == (1, 1)
    assert not trap.is_configured


_HOT = {
    "int8": (gemm_int8_ir, "tdpbusd"),
    "bf16": (gemm_bf16_ir, "tdpbf16ps"),
    "integers": (lambda isa: matmul_integer_ir(isa, IntegerForm.BYTES, is_float=True), "tdpbusd"),
}


@pytest.mark.parametrize("name", _HOT)
def test_the_code_for_amx_holds_its_sums_in_tiles(name: str) -> None:
    """Per turn of the largest tile: four products, four loads, and nothing of it on the stack."""
    generate, instruction = _HOT[name]
    (made,) = compile_assembly([generate(AVX512_AMX)], AVX512_AMX.cpu, AVX512_AMX.features, AVX512_AMX.triple)
    (turn,) = [loop.lines for loop in inner_loops(made) if loop.function.endswith("_1_2x2")]
    words = [line.split()[0] for line in turn]
    assert (words.count(instruction), words.count("tileloadd"), words.count("tilestored")) == (4, 4, 0)
    assert not any(re.search(r"%rsp|%[xyz]mm", line) for line in turn)
    tiles = [line for line in made.splitlines() if re.search(r"\ttile(load|store)", line)]
    assert not any("%rsp" in line for line in tiles), "a tile on the stack"
    assert made.count("\tldtilecfg\t") == made.count("\ttilerelease") == 1


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_code_of_a_convolution_holds_its_sums_in_tiles(layout: ImageLayout) -> None:
    """Per turn: twelve products of both parts of the image and of the weights, for eight loads."""
    text = conv_tiles_ir(AVX512_AMX, ConvForm(layout, layout), parts=2)
    (made,) = compile_assembly([text], AVX512_AMX.cpu, AVX512_AMX.features, AVX512_AMX.triple)
    (turn,) = [loop.lines for loop in inner_loops(made) if loop.function.endswith("_2x2")]
    words = [line.split()[0] for line in turn]
    assert [words.count(word) for word in ("tdpbf16ps", "tileloadd", "tilestored")] == [12, 8, 0]
    assert not any(re.search(r"%rsp|%[xyz]mm", line) for line in turn)
    tiles = [line for line in made.splitlines() if re.search(r"\ttile(load|store)", line)]
    assert not any("%rsp" in line for line in tiles), "a tile on the stack"
