"""Six-bit codes as nested bit-planes in the kernels' order, and back.

A group is 32 rows x 16 columns of codes. Plane q (0 = most significant bit) of a group is 64 bytes:
16 little-endian u32, one per column; row v has its bit at `bit_position(q, v)` of that u32.
"""

from functools import cache

import numpy as np

from pliant.arrays import Float32, Int, UInt8
from pliant.errors import StoreError
from pliant.ir.bitwidths import PLANES
from pliant.models.slice_shapes import GROUP_COLUMNS, GROUP_ROWS, PLANE_GROUP_BYTES
from pliant.store.coding.quantize import LEVELS

_BLOCK = 512  # groups at a time, so that the unpacked bits stay in cache


def pack_planes(codes: UInt8[np.ndarray, "groups 32 16"]) -> UInt8[np.ndarray, "6 groups 64"]:
    """Codes 0..63 as six bit-planes. Raises StoreError when a code needs more than six bits."""
    if codes.size and int(codes.max()) >= LEVELS:
        raise StoreError(f"code {int(codes.max())} does not fit {PLANES} bits.")
    out = np.empty((PLANES, len(codes), PLANE_GROUP_BYTES), np.uint8)
    for start in range(0, len(codes), _BLOCK):
        columns = codes[start : start + _BLOCK].transpose(0, 2, 1)
        for q in range(PLANES):
            bits = columns[:, :, _rows_by_position(q)] & np.uint8(1 << (PLANES - 1 - q))
            words = np.packbits(bits, axis=2, bitorder="little")
            out[q, start : start + _BLOCK] = words.reshape(len(bits), PLANE_GROUP_BYTES)
    return out


def unpack_planes(planes: UInt8[np.ndarray, "bits groups 64"]) -> UInt8[np.ndarray, "groups 32 16"]:
    """The k-bit codes that the first k = len(planes) planes hold."""
    bits, groups = planes.shape[:2]
    out = np.zeros((groups, GROUP_ROWS, GROUP_COLUMNS), np.uint8)
    for start in range(0, groups, _BLOCK):
        block = out[start : start + _BLOCK]
        for q in range(bits):
            words = planes[q, start : start + _BLOCK].reshape(len(block), GROUP_COLUMNS, GROUP_ROWS // 8)
            ones = np.unpackbits(words, axis=2, bitorder="little")[:, :, _positions(q)]
            block |= ones.transpose(0, 2, 1) << np.uint8(bits - 1 - q)
    return out


def decode(
    planes: UInt8[np.ndarray, "bits groups 64"], codebook: Float32[np.ndarray, " levels"]
) -> Float32[np.ndarray, "groups 32 16"]:
    """The value of every code under the codebook of as many bits as there are planes, outliers ignored."""
    if len(codebook) != 1 << len(planes):
        raise StoreError(f"{len(planes)} planes need {1 << len(planes)} centroids, not {len(codebook)}.")
    values: np.ndarray = codebook[unpack_planes(planes)]
    return values


def bit_position(plane: int, row: int) -> int:
    """Where in a column's u32 the bit of `row` (0..31) lies in `plane`.

    With row = 4w + b: planes 0..3 put it at 8b + (w xor plane), so that shifted words of different
    planes interleave without masks; planes 4 and 5 fill the bits that this leaves free.
    """
    w, b = divmod(row, 4)
    if plane < 4:
        return 8 * b + (w ^ plane)
    if plane == 4:
        return (8 * (b + (0, 0, -1, -1, 1, 1, 0, 0)[w]) + (4, 5, 6, 7, 0, 1, 2, 3)[w]) % 32
    return 8 * b + w


@cache
def _positions(plane: int) -> Int[np.ndarray, "32"]:
    return np.array([bit_position(plane, row) for row in range(GROUP_ROWS)])


@cache
def _rows_by_position(plane: int) -> Int[np.ndarray, "32"]:
    return np.argsort(_positions(plane))
