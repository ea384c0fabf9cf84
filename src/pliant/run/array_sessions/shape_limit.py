"""The largest shapes that a session with a memory limit has memory for."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import final

from pliant.ir.port import Port
from pliant.run.array_sessions.input_sizes import length_port
from pliant.run.session.ports import Shapes, symbols

_MOST_KEPT = 64


@final
class ShapeLimit:
    """Sizes of open dimensions that there was no memory for: with as much or more of each, there is none.

    `inputs` are the model's. The length of an input is that of `input_length`; if all shapes are fixed, there
    is no limit to tell.
    """

    def __init__(self, inputs: Sequence[Port]) -> None:
        self._inputs = inputs
        counted = length_port(inputs) if all(port.dims is not None for port in inputs) else None
        first = () if counted is None else symbols(counted)
        self._open = tuple(s for s in first if s is not None)
        every = {s for port in inputs for s in symbols(port) if s is not None}
        self._is_one = len(self._open) == 1 == len(every)
        self._refused: tuple[Mapping[str, int], ...] = ()

    def search(
        self, shapes: Callable[[int], Shapes], fits: Callable[[Shapes], bool | None], most: int
    ) -> None:
        """Find the longest of the inputs `shapes(length)` that fits, by bisection up to length `most`.

        `fits` returns None for shapes that the model does not take, which say nothing about memory.
        """
        low, high, is_memory = 0, most + 1, False
        while self._open and high - low > 1:
            middle = (low + high) // 2
            found = fits(shapes(middle))
            if found:
                low = middle
            else:
                high, is_memory = middle, found is False
        if is_memory:
            self.refuse(shapes(high))

    def refuse(self, shapes: Shapes) -> None:
        """Record shapes that there is no memory for."""
        sizes = self._sizes(shapes)
        if self._open and not any(_covers(one, sizes) for one in self._refused):
            others = [one for one in self._refused if not _covers(sizes, one)]
            self._refused = (*others[-_MOST_KEPT + 1 :], sizes)

    def most_length(self, shapes: Shapes | None = None) -> int | None:
        """The longest input that memory may suffice for, with the other dimensions as in `shapes`.

        None if no limit is known; without `shapes`, also for a model with several open dimensions.
        """
        every = self._refused  # another thread may add to it
        is_square = len({*self._open}) < len(self._open)  # a length does not give the size of its sides
        if not every or is_square or (shapes is None and not self._is_one):
            return None
        *others, last = self._open
        sizes = {} if shapes is None else self._sizes(shapes)
        refused = [(one[last], {s: n for s, n in one.items() if s != last}) for one in every]
        most = min((n - 1 for n, rest in refused if _covers(rest, sizes)), default=None)
        return None if most is None else most * prod(sizes[s] for s in others)

    def _sizes(self, shapes: Shapes) -> dict[str, int]:
        named = (zip(symbols(port), shapes.get(port.name, ()), strict=False) for port in self._inputs)
        return {s: n for pairs in named for s, n in pairs if s is not None}


def _covers(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Whether there is no memory for `other` if there is none for `one`."""
    return all(other[s] >= n for s, n in one.items())
