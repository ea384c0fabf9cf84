"""A strided view of a tensor: the result of reshapes, transposes and slices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from pliant.compiler.executable.call import Ref
from pliant.errors import GraphError
from pliant.ir.graph import Graph, TensorType


@dataclass(frozen=True, slots=True)
class View:
    """Element (i, j, ...) of `shape` is element offset + i * stride + j * stride + ... of `tensor`'s data."""

    tensor: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie one after another in row-major order."""
        return self.count == 0 or all(
            n == 1 or stride == dense
            for n, stride, dense in zip(self.shape, self.strides, row_major(self.shape), strict=True)
        )

    @property
    def attribute(self) -> tuple[int, ...]:
        """The view as a node's attribute: offset, shape, strides."""
        return (self.offset, *self.shape, *self.strides)

    def ref(self, itemsize: int) -> Ref:
        """The address of the first element."""
        return Ref(self.tensor, self.offset * itemsize)

    def broadcast(self, shape: Sequence[int]) -> "View":
        """The view broadcast to a shape, with stride 0 along repeated dimensions; GraphError if it does not
        broadcast.
        """
        lead = len(shape) - len(self.shape)
        own = (*(1,) * lead, *self.shape)
        strides = (*(0,) * lead, *self.strides)
        if lead < 0 or not all(n in (1, m) for n, m in zip(own, shape, strict=True)):
            raise GraphError(f"the shape {list(self.shape)} does not broadcast to {list(shape)}.")
        kept = tuple(s if n == m else 0 for s, n, m in zip(strides, own, shape, strict=True))
        return View(self.tensor, self.offset, tuple(shape), kept)

    def transposed(self, order: Sequence[int]) -> "View":
        """Dimension i is dimension order[i] of this view. Raises GraphError if `order` is not a
        permutation.
        """
        if sorted(order) != list(range(len(self.shape))):
            raise GraphError(f"{list(order)} is not an order of the {len(self.shape)} dimensions there are.")
        return replace(
            self, shape=tuple(self.shape[i] for i in order), strides=tuple(self.strides[i] for i in order)
        )

    def sliced(self, axis: int, start: int, count: int, step: int = 1) -> "View":
        """`count` positions of `axis`: `start`, `start + step`, ... Raises GraphError for positions out of
        range.
        """
        last = start + (count - 1) * step
        is_axis = 0 <= axis < len(self.shape)
        if not is_axis or (count and not (0 <= start < self.shape[axis] and 0 <= last < self.shape[axis])):
            raise GraphError(
                f"the shape {list(self.shape)} has no positions {start} to {last} of axis {axis}."
            )
        return self.placed(axis, (count,), (step,), start if count else 0)

    def placed(self, axis: int, shape: Sequence[int], steps: Sequence[int], start: int) -> "View":
        """`axis` as dimensions of `shape` that advance `steps` positions along it, from `start` on."""
        strides = tuple(step * self.strides[axis] for step in steps)
        return replace(
            self,
            offset=self.offset + start * self.strides[axis],
            shape=(*self.shape[:axis], *shape, *self.shape[axis + 1 :]),
            strides=(*self.strides[:axis], *strides, *self.strides[axis + 1 :]),
        )

    def split(self, axis: int, parts: Sequence[int]) -> "View":
        """`axis` as several dimensions of lengths `parts`, whose product is its length; else GraphError."""
        if prod(parts) != self.shape[axis]:
            raise GraphError(
                f"axis {axis} of the shape {list(self.shape)} cannot be split into {list(parts)}."
            )
        return self.placed(axis, parts, row_major(parts), 0)


def whole_view(tensor: str, type_: TensorType, shape: Sequence[int] | None = None) -> View:
    """A view of a whole tensor, or in another shape. Raises GraphError if the shape has another number of
    elements.
    """
    shape = type_.shape if shape is None else tuple(shape)
    if prod(shape) != type_.size:
        raise GraphError(f"{tensor!r} is {type_}, which cannot be seen as {list(shape)}.")
    return View(tensor, 0, shape, row_major(shape))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor, in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def broadcast_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The shape that two shapes broadcast to. Raises GraphError where they do not."""
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True))
    if any(m not in (1, n) and n != 1 for m, n in pairs):
        raise GraphError(f"shapes {list(a)} and {list(b)} do not broadcast.")
    return tuple(n if m == 1 else m for m, n in pairs)


def input_view(graph: Graph, tensor: str, attribute: tuple[int, ...] | None = None) -> View:
    """A node's input, through the view in an attribute if there is one."""
    if attribute is None:
        return whole_view(tensor, graph.types[tensor])
    rank = len(attribute) // 2
    offset, *numbers = attribute
    return View(tensor, offset, tuple(numbers[:rank]), tuple(numbers[rank:]))


def regular_steps(
    indices: np.ndarray | None, length: int
) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
    """Shape, steps and start of known indices that form a regular view of `length` positions; else None."""
    if indices is None or indices.size == 0 or not (-length <= indices.min() and indices.max() < length):
        return None
    found = np.where(indices < 0, indices + length, indices).astype(np.int64)
    start = int(found.flat[0])
    steps = []
    for axis, n in enumerate(found.shape):
        second = tuple(int(i == axis) for i in range(found.ndim))
        steps.append(int(found[second]) - start if n > 1 else 0)
    lines = [np.arange(n) * step for n, step in zip(found.shape, steps, strict=True)]
    line = start + sum(np.ix_(*lines)) if lines else np.array(start)
    return (found.shape, tuple(steps), start) if np.array_equal(found, line) else None


def merge_dims(extents: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Merge dimensions that every operand can walk as one; drop those of extent 1."""
    kept: list[int] = []
    found: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(extents):
        if n == 1:
            continue
        if kept and all(f[-1] == s[d] * n for f, s in zip(found, strides, strict=True)):
            kept[-1] *= n
            for f, s in zip(found, strides, strict=True):
                f[-1] = s[d]
            continue
        kept.append(n)
        for f, s in zip(found, strides, strict=True):
            f.append(s[d])
    return kept, found


def read_view(array: np.ndarray, view: View, alpha: float = 1.0) -> np.ndarray:
    """alpha times the values of a view of a float32 constant."""
    flat = np.ascontiguousarray(array).reshape(-1)[view.offset :]
    values = np.lib.stride_tricks.as_strided(flat, view.shape, [4 * s for s in view.strides], writeable=False)
    return values if alpha == 1.0 else values * np.float32(alpha)
