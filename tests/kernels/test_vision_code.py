"""Grouped convolutions and pools use what a row's instruction set has, which no machine here may have."""

import re
from collections.abc import Iterator

import pytest

from pliant.kernels.conv.conv import conv_ir
from pliant.kernels.conv.conv_args import ConvForm, ImageLayout
from pliant.kernels.conv.conv_grouped import GroupedForm, grouped_ir
from pliant.kernels.conv.conv_tile import UNROLL, tile_panels, tile_pixels
from pliant.kernels.conv.direct.conv_pointwise import PointwiseForm, pointwise_ir, tile_vectors
from pliant.kernels.emit.isa import AVX2, AVX512, NEON, Isa
from pliant.kernels.pool.pool_rows import pool_rows_ir
from pliant.kernels.pool.pool_window import PoolForm
from tests.kernels.product.test_integer_dots import assembly

_PRODUCT = {"neon": "fmla", "avx2": "vfmadd", "avx512": "vfmadd"}
_STACK = {
    "neon": r"\b[qv]\d+.*\[sp",
    "avx2": r"\(%rsp\).*ymm|ymm.*\(%rsp",
    "avx512": r"\(%rsp\).*zmm|zmm.*\(%rsp",
}


@pytest.mark.parametrize(
    ("isa", "pixels"), [(NEON, 7), (NEON, 14), (AVX2, 7), (AVX512, 7), (AVX512, 14)], ids=str
)
def test_a_wide_group_multiplies_each_pixel_and_tap_once(isa: Isa, pixels: int) -> None:
    """One product for each of 3 taps and each pixel, and every sum in a register."""
    form = GroupedForm(16, kernel_w=3, pixels=pixels)
    lines = list(_function(assembly(grouped_ir(isa, form), isa), "tile"))
    assert len(_products(lines, isa)) == 3 * pixels
    assert not [line for line in lines if re.search(_STACK[isa.name], line)]


@pytest.mark.parametrize("isa", [NEON, AVX2, AVX512], ids=lambda isa: isa.name)
@pytest.mark.parametrize("rows", [3, 4, 6])
def test_a_tile_of_points_stays_in_registers(isa: Isa, rows: int) -> None:
    """One product for each row and vector of pixels."""
    vectors = tile_vectors(isa, rows)
    lines = list(_function(assembly(pointwise_ir(isa, PointwiseForm(rows)), isa), f"tile{vectors}"))
    assert len(_products(lines, isa)) == rows * vectors
    assert not [line for line in lines if re.search(_STACK[isa.name], line)]


@pytest.mark.parametrize("ends", [("nchw", "nchw"), ("nhwc", "nhwc")], ids=lambda ends: ends[0])
def test_two_panels_of_a_convolution_stay_in_registers(ends: tuple[ImageLayout, ImageLayout]) -> None:
    """28 sums, two vectors of weights and a pixel fill 31 of 32 registers: LLVM's own order spilled 120."""
    made = assembly(conv_ir(AVX512, ConvForm(*ends)), AVX512)
    for pixels in range(1, tile_pixels(AVX512) + 1):
        lines = list(_function(made, f"tile{pixels}x2"))
        assert len(_products(lines, AVX512)) == UNROLL * pixels * tile_panels(AVX512)
        assert not [line for line in lines if re.search(_STACK["avx512"], line)]


def test_arm_keeps_a_nan_in_one_instruction() -> None:
    """Its maximum does; a comparison and a selection for each tap are what others need."""
    made = assembly(pool_rows_ir(NEON, PoolForm("max", stride_w=1, taps=(3, 3))), NEON)
    assert "\tfmax\t" in made
    assert "\tfcmgt\t" not in made


def _products(lines: list[str], isa: Isa) -> list[str]:
    return [line for line in lines if line.strip().startswith(_PRODUCT[isa.name])]


def _function(made: str, name: str) -> Iterator[str]:
    """The lines of one function."""
    is_inside = False
    for line in made.splitlines():
        is_inside = line.startswith(f"{name}:") or (is_inside and not line.startswith(".Lfunc_end"))
        if is_inside:
            yield line
