"""Constants of a model that depend on open sizes: their elements and dimensions are polynomials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import mul

import numpy as np

Factors = tuple[int, ...]
"""Coefficients of the `monomials`: of 1, of the sizes, and of the products of two sizes."""


@dataclass(frozen=True, slots=True)
class SymbolicConstant:
    """A constant that depends on sizes: the first part of `whole`, single elements, or a grid.

    Element (i, j, ...) of a grid is a + b * i + c * j + ...: `grid` has the coefficients of (a, b, ...),
    `dims` those of each dimension.
    """

    dtype: np.dtype
    dims: tuple[Factors, ...]
    whole: np.ndarray | None = None
    elements: tuple[Factors, ...] | None = None
    grid: tuple[Factors, ...] = ()

    def at(self, sizes: Sequence[int]) -> np.ndarray:
        """The constant for these sizes."""
        of = monomials(sizes)
        shape = tuple(_value(factors, of) for factors in self.dims)
        if self.whole is not None:
            return np.ascontiguousarray(self.whole[tuple(map(slice, shape))])
        if self.elements is not None:
            return np.array([_value(factors, of) for factors in self.elements], self.dtype).reshape(shape)
        first, *steps = (_value(factors, of) for factors in self.grid)
        return grid(first, steps, shape).astype(self.dtype)


KnownConstants = Mapping[str, np.ndarray | SymbolicConstant]
"""Tensors by name whose values are known when the sizes are."""


def constants_at(known: KnownConstants, sizes: Sequence[int]) -> dict[str, np.ndarray]:
    """The values of `known` for these sizes: read-only, since images keep them."""
    made = {x: a.at(sizes) if isinstance(a, SymbolicConstant) else a for x, a in known.items()}
    for array in made.values():
        array.flags.writeable = False
    return made


def monomials(sizes: Sequence[int]) -> list[int]:
    """1, the sizes, and the products of two of them."""
    return [1, *sizes, *(a * b for a, b in combinations(sizes, 2))]


def grid(first: int, steps: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """The array whose elements grow by `steps` along each axis."""
    axes = np.ix_(*(step * np.arange(n) for step, n in zip(steps, shape, strict=True)))
    return np.asarray(first + sum(axes, np.zeros(shape, np.int64)))


def grid_corner(array: np.ndarray) -> list[int]:
    """The first element of a grid and its step along each axis; 0 for an axis of length 1."""
    first = array[(slice(0, 2),) * array.ndim]
    corner = (0,) * array.ndim
    return [
        int(first[corner]),
        *(
            int(first[(*corner[:i], 1, *corner[i + 1 :])] - first[corner]) if n > 1 else 0
            for i, n in enumerate(array.shape)
        ),
    ]


def _value(factors: Factors, of: Sequence[int]) -> int:
    return sum(map(mul, factors, of))
