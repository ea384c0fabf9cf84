"""Tensors seen through strides: a transpose, a slice or a spread moves nothing by itself. Knows no kernel."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from pliant.ir.graph import TensorType


@dataclass(frozen=True, slots=True)
class View:
    """Elements of `size` bytes of `tensor`: the first at `offset`, the others by `strides`, in elements."""

    tensor: str
    size: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie one after another in row-major order."""
        return self.count == 0 or all(
            n == 1 or stride == dense
            for n, stride, dense in zip(self.shape, self.strides, row_major(self.shape), strict=True)
        )

    def transposed(self, order: Sequence[int]) -> "View":
        """Dimension i is dimension order[i] of this view."""
        return replace(
            self, shape=tuple(self.shape[i] for i in order), strides=tuple(self.strides[i] for i in order)
        )

    def sliced(self, axis: int, start: int, count: int, step: int = 1) -> "View":
        """`count` positions of `axis`: `start`, `start + step`, ..."""
        assert count == 0 or 0 <= start < self.shape[axis], (axis, start, count, step)
        assert count == 0 or 0 <= start + (count - 1) * step < self.shape[axis], (axis, start, count, step)
        return replace(
            self,
            shape=_with(self.shape, axis, count),
            strides=_with(self.strides, axis, self.strides[axis] * step),
            offset=self.offset + start * self.strides[axis] * (count > 0),
        )

    def placed(self, axis: int, shape: Sequence[int], steps: Sequence[int], start: int) -> "View":
        """`axis` as dimensions of `shape`, whose turns go `steps` positions along it from `start` on."""
        strides = tuple(step * self.strides[axis] for step in steps)
        return replace(
            self,
            shape=(*self.shape[:axis], *shape, *self.shape[axis + 1 :]),
            strides=(*self.strides[:axis], *strides, *self.strides[axis + 1 :]),
            offset=self.offset + start * self.strides[axis],
        )

    def spread(self, shape: Sequence[int]) -> "View":
        """Broadcast to `shape` by numpy's rules."""
        missing = len(shape) - len(self.shape)
        old = (1,) * missing + self.shape
        strides = (0,) * missing + self.strides
        kept = tuple(s if n == m else 0 for n, m, s in zip(old, shape, strides, strict=True))
        return replace(self, shape=tuple(shape), strides=kept)

    def split(self, axis: int, parts: Sequence[int]) -> "View":
        """`axis` as several dimensions of lengths `parts`, whose product is its length."""
        assert prod(parts) == self.shape[axis], (self.shape, axis, parts)
        strides = tuple(self.strides[axis] * stride for stride in row_major(parts))
        return replace(
            self,
            shape=(*self.shape[:axis], *parts, *self.shape[axis + 1 :]),
            strides=(*self.strides[:axis], *strides, *self.strides[axis + 1 :]),
        )


def whole(tensor: str, type_: TensorType, shape: Sequence[int] | None = None) -> View:
    """All of a tensor, row-major, under its own shape or another of as many elements."""
    shape = type_.shape if shape is None else tuple(shape)
    assert prod(shape) == type_.size, (type_, shape)
    return View(tensor, type_.itemsize, shape, row_major(shape))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor, in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _with(values: tuple[int, ...], i: int, value: int) -> tuple[int, ...]:
    return (*values[:i], value, *values[i + 1 :])
