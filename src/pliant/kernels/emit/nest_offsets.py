"""Find the offset of element number i in a strided nest of dimensions."""

from collections.abc import Sequence

from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value


def find_offsets(
    f: Function, index: Value, rank: Value, sizes: Value, strides: Sequence[Value]
) -> list[Value]:
    """For each array of `strides`, the offset in elements of element `index` of a nest of rank >= 1.

    `sizes` and every array of strides are i64, the fastest dimension first.
    """

    def number(array: Value, d: Value) -> Value:
        return f.load(f.at(array, d, "i64"), "i64")

    last = rank - 1
    with f.loop(0, last, carry=[index, *[f.const(0)] * len(strides)]) as loop:
        left, *found = loop.carried
        size = number(sizes, loop.index)
        at = left % size
        moved = [x + at * number(array, loop.index) for x, array in zip(found, strides, strict=True)]
        loop.carry([left // size, *moved])
    left, *found = loop.carried
    return [x + left * number(array, last) for x, array in zip(found, strides, strict=True)]
