"""Find the open dimension that exceeds a model's limit, and that limit, by trying sizes."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pliant.errors import InputError, ShapeError
from pliant.ir.port import Port
from pliant.run.session.ports import Shapes, symbols

Fits = Callable[[Shapes], bool]


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """Dimension `name` has `size` in `port`; with all other sizes unchanged, the model accepts up to
    `limit`.
    """

    name: str
    port: str
    size: int
    limit: int

    def error(self, why: ShapeError, buckets: Collection[str]) -> InputError:
        """The error for the user; `why` is the binding error, `buckets` the dimensions with buckets."""
        hint = ", or give it smaller buckets" if self.name in buckets else ""
        return InputError(
            f"dimension {self.name!r} is {self.size} in input {self.port!r}, but this model takes at most "
            f"{self.limit}: with more, {why.where} does not fit. Shorten or split the input{hint}."
        )


def find_size_limit(
    ports: Sequence[Port], shapes: Shapes, fits: Fits, guesses: Sequence[int]
) -> SizeLimit | None:
    """The first dimension, largest first, that the model accepts at a smaller size; None if there is none.

    `guesses` are limits found for other shapes; they are tried first.
    """
    sizes: dict[str, tuple[int, str]] = {}
    for port in ports:
        for name, size in zip(symbols(port), shapes.get(port.name, ()), strict=False):
            if name is not None:
                sizes.setdefault(name, (size, port.name))
    for name, (size, port_name) in sorted(sizes.items(), key=lambda item: -item[1][0]):

        def fits_at(n: int, name: str = name) -> bool:
            return fits(_resized(ports, shapes, name, n))

        limit = _largest(fits_at, size, guesses)
        if limit is not None:
            return SizeLimit(name, port_name, size, limit)
    return None


def _largest(fits: Callable[[int], bool], size: int, guesses: Sequence[int]) -> int | None:
    """The largest number below `size` that fits, assuming that all smaller ones fit; None if 1 does not
    fit.
    """
    low, high = 1, size
    for guess in guesses:
        if guess + 1 <= size and fits(guess) and (guess + 1 == size or not fits(guess + 1)):
            return guess
    if size < 2 or not fits(low):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _resized(ports: Sequence[Port], shapes: Shapes, name: str, size: int) -> Shapes:
    """The shapes with one dimension set to another size."""
    found = dict(shapes)
    for port in ports:
        if port.dims is not None:
            named = zip(symbols(port), shapes[port.name], strict=True)
            found[port.name] = tuple(size if symbol == name else n for symbol, n in named)
    return found
