"""Layouts as permutations: "0231" puts dimension 0 outermost, then 2, 3, and 1 innermost.

A tensor in a layout is the dense tensor of the permuted shape; with a "+" at the end, its rows have a gap of
a cache line, so that rows of 4 KB do not map to the same cache sets.
"""

from collections.abc import Sequence
from dataclasses import replace

from pliant.compiler.layout.layout_problem import Layout
from pliant.compiler.rewrite.view import View
from pliant.ir.graph import TensorType

GAP = "+"
GAP_BYTES = 64

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def identity(rank: int) -> Layout:
    """The row-major layout."""
    return _DIGITS[:rank]


def order(layout: Layout) -> tuple[int, ...]:
    """The dimensions from the outermost to the innermost."""
    return tuple(_DIGITS.index(digit) for digit in without_gap(layout))


def without_gap(layout: Layout) -> Layout:
    """The same permutation without a gap between rows."""
    return layout.removesuffix(GAP)


def has_gap(layout: Layout) -> bool:
    """Whether rows have a gap between them."""
    return layout.endswith(GAP)


def layout_of(dims: Sequence[int]) -> Layout:
    """The inverse of `order`."""
    return "".join(_DIGITS[d] for d in dims)


def physical_axis(layout: Layout, axis: int) -> int:
    """The dimension of the physical tensor for `axis`."""
    return layout.index(_DIGITS[axis])


def physical_type(type_: TensorType, layout: Layout) -> TensorType:
    """The type of the dense tensor that holds one of `type_` in `layout`, gaps included."""
    shape = tuple(type_.shape[d] for d in order(layout))
    if has_gap(layout):
        shape = (*shape[:-1], shape[-1] + gap_of(type_, layout))
    return replace(type_, shape=shape)


def gap_of(type_: TensorType, layout: Layout) -> int:
    """Elements of `type_` between the end of a row and the next."""
    return GAP_BYTES // type_.itemsize if has_gap(layout) else 0


def permutation_between(have: Layout, want: Layout) -> tuple[int, ...]:
    """The permutation by which a Transpose brings a tensor from one layout to another."""
    return tuple(have.index(digit) for digit in without_gap(want))


def same_bytes(type_: TensorType, a: Layout, b: Layout) -> bool:
    """Whether two layouts differ in dimensions of one element only."""
    if has_gap(a) or has_gap(b):
        return a == b
    moving = [_DIGITS[d] for d, n in enumerate(type_.shape) if n != 1]
    return [x for x in a if x in moving] == [x for x in b if x in moving]


def strides(type_: TensorType, layout: Layout) -> tuple[int, ...]:
    """The stride of each dimension, in the order of `type_`'s shape, in elements."""
    steps = physical_type(type_, layout).strides
    return tuple(steps[physical_axis(layout, d)] for d in range(len(type_.shape)))


def view_in_layout(view: View, type_: TensorType, layout: Layout) -> View | None:
    """The view of the tensor in `layout` that equals `view` of the row-major tensor of `type_`.

    None if a dimension of the view spans several dimensions of the tensor.
    """
    if layout == identity(len(type_.shape)):
        return view
    if 0 in type_.shape or 0 in view.shape:
        return None
    if type_.size == 1:
        return view
    new = strides(type_, layout)
    reached, left, offset = [0] * len(new), view.offset, 0
    for d, old in enumerate(type_.strides):
        reached[d], left = left // old, left % old
        offset += reached[d] * new[d]
    moved = []
    for n, step in zip(view.shape, view.strides, strict=True):
        if n == 1 or step == 0:
            moved.append(0)
            continue
        d = next(d for d, old in enumerate(type_.strides) if type_.shape[d] > 1 and step % old == 0)
        steps = step // type_.strides[d]
        reached[d] += (n - 1) * steps
        moved.append(steps * new[d])
    if any(at >= n for at, n in zip(reached, type_.shape, strict=True)):
        return None
    return View(view.tensor, offset, view.shape, tuple(moved))
