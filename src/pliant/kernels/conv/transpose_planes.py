"""Transpose a block of channels-first planes to pixels with contiguous channels, and back, in scratch."""

from collections.abc import Callable, Sequence

from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.spans import visit_strips
from pliant.kernels.emit.values import Value, vector

_SQUARE = 8
"""Side of the squares that are transposed: on some CPUs larger ones take more time per element."""


def planes_to_pixels(f: Function, planes: Value, plane: Value, n: Value, width: int, to: Value) -> None:
    """to[pixel][channel], `n` pixels of `width` planes, which are `plane` floats apart."""

    def visit(pixel: Value, lanes: int, _: int) -> None:
        type_ = vector(lanes, "float") if lanes > 1 else "float"
        with f.each(0, width, lanes) as c:
            square = [f.load(f.at(planes, (c + i) * plane + pixel), type_) for i in range(lanes)]
            for i, value in enumerate(transpose_square(f, square)):
                f.store(value, f.at(to, (pixel + i) * width + c))

    visit_strips(f, n, visit, lanes=min(f.lanes, _SQUARE))


def pixels_to_planes(
    f: Function, pixels: Value, n: Value, width: int, store: Callable[[Value, Value, Value, int], None]
) -> None:
    """`store(values, channel, pixel, lanes)` for `lanes` pixels of one channel, until `n` are stored.

    A pixel may be stored twice.
    """

    def visit(pixel: Value, lanes: int, _: int) -> None:
        type_ = vector(lanes, "float") if lanes > 1 else "float"
        with f.each(0, width, lanes) as c:
            rows = [f.load(f.at(pixels, (pixel + i) * width + c), type_) for i in range(lanes)]
            for i, value in enumerate(transpose_square(f, rows)):
                store(value, c + i, pixel, lanes)

    visit_strips(f, n, visit, lanes=min(f.lanes, _SQUARE))


def transpose_square(f: Function, rows: Sequence[Value]) -> list[Value]:
    """Transpose a square of vectors by exchanging halves in log2(lanes) steps."""
    n = len(rows)
    vectors = list(rows)
    half = 1
    while half < n:
        # Within blocks of 2 * half lanes, the upper half of one row is exchanged with the lower half of
        # another.
        low = [i if i & half == 0 else n + i - half for i in range(n)]
        high = [i + half if i & half == 0 else n + i for i in range(n)]
        following = list(vectors)
        for i in range(n):
            if i & half == 0:
                a, b = vectors[i], vectors[i + half]
                following[i] = f.shuffle(a, b, low)
                following[i + half] = f.shuffle(a, b, high)
        vectors = following
        half *= 2
    return vectors
