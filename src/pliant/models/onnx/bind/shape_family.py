"""Input shapes of a model that differ only in open sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

InputShapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ShapeFamily:
    """Input shapes whose dimensions are fixed, or an open size plus a constant.

    `dims` has (number of the open size or None, number) for each axis; sizes lie in `low` .. `high`.
    """

    dims: Mapping[str, tuple[tuple[int | None, int], ...]]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"n{i}" for i in range(len(self.low)))

    def sizes(self, shapes: InputShapes) -> tuple[int, ...] | None:
        """The open sizes of shapes; None if they do not belong to this family."""
        found: dict[int, int] = {}
        for x, dims in self.dims.items():
            for (i, above), dim in zip(dims, shapes[x], strict=True):
                if i is None:
                    if dim != above:
                        return None
                elif found.setdefault(i, dim - above) != dim - above:
                    return None
        sizes = tuple(found[i] for i in range(len(self.low)))
        is_within = all(a <= n <= b for a, n, b in zip(self.low, sizes, self.high, strict=True))
        return sizes if is_within else None

    def shapes(self, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        return {
            x: tuple(above if i is None else sizes[i] + above for i, above in dims)
            for x, dims in self.dims.items()
        }
