"""Pad feeds to the next of a few sizes, and cut the outputs back.

Padding is correct only for a model whose outputs do not depend on it, such as a model with a mask. This is
checked by comparison, not assumed: `find_cuts` finds from one padded and one exact answer which axes to cut
back, and `find_differences` returns the outputs that padding changed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

import numpy as np

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.run.session.ports import Feeds, Shapes, symbols

Cuts = Mapping[str, tuple[str | None, ...]]
"""For each output, the dimension that each axis is cut back to, or None."""

_ROUNDING, _ROUNDING_16 = 1e-4, 2e-2
"""Tolerances for 32-bit and 16-bit floats, as a fraction of the largest value of an output."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """The sizes to compile for, by symbolic dimension; inputs are padded with zeros or their `pads`.

    Raises InputError for invalid sizes.
    """

    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    pads: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_mapping(self.sizes, "buckets", '{"sequence": (32, 64)}')
        check_mapping(self.pads, "pads", '{"input_ids": 0}')
        for name, pad in self.pads.items():
            if not isinstance(pad, Real):
                raise InputError(f"the pad of {name!r} is {pad!r}; give a number.")
        for name, sizes in self.sizes.items():
            if isinstance(sizes, str) or not isinstance(sizes, Collection):
                raise InputError(f"the buckets of {name!r} are {sizes!r}; give several, such as (32, 64).")
            whole = [n for n in sizes if isinstance(n, Integral) and not isinstance(n, bool) and n > 0]
            if not whole or len(whole) < len(sizes):
                raise InputError(f"the buckets of {name!r} are {sizes!r}; give whole numbers above 0.")
        # Numpy's integers, which are refused further down and printed by their type, become plain ones.
        plain = {name: tuple(int(n) for n in sizes) for name, sizes in self.sizes.items()}
        object.__setattr__(self, "sizes", plain)

    def check(self, ports: Sequence[Port]) -> None:
        """Raise InputError for a dimension that is fixed or unknown, or a pad of an unknown input."""
        known = {s for port in ports for s in symbols(port) if s is not None}
        unknown = sorted(set(self.sizes) - known)
        if unknown:
            raise InputError(f"the model has no open dimension {unknown[0]!r}; it has {sorted(known)}.")
        strangers = sorted(set(self.pads) - {port.name for port in ports})
        if strangers:
            raise InputError(f"there is no input {strangers[0]!r} to pad; it has {[p.name for p in ports]}.")

    def fit(self, ports: Sequence[Port], shapes: Shapes) -> "BucketFit":
        """The sizes fed and the sizes to run. Raises InputError naming a size beyond the largest bucket."""
        fed: dict[str, int] = {}
        run: dict[str, int] = {}
        if not self.sizes:
            return BucketFit(fed, run)
        for port in ports:
            for symbol, size in zip(symbols(port), shapes[port.name], strict=False):
                if symbol is None or symbol not in self.sizes:
                    continue
                larger = [n for n in self.sizes[symbol] if n >= size]
                if not larger:
                    raise InputError(
                        f"dimension {symbol!r} is {size} in input {port.name!r}, but its largest bucket is "
                        f"{max(self.sizes[symbol])}: give a larger one, or feed less."
                    )
                fed[symbol], run[symbol] = size, min(larger)
        return BucketFit(fed, run)

    def pad(
        self, ports: Sequence[Port], feeds: Feeds, fit: "BucketFit", into: dict[str, np.ndarray]
    ) -> Feeds:
        """The feeds padded to the sizes of `fit`. Arrays in `into` are reused, new arrays are added to it."""
        found = dict(feeds)
        for port in ports:
            array = feeds[port.name]
            shape = fit.shape(port, array.shape)
            if shape != array.shape:
                if port.name not in into or into[port.name].shape != shape:
                    into[port.name] = np.empty(shape, array.dtype)
                whole = found[port.name] = into[port.name]
                whole[...] = self.pads.get(port.name, 0)
                whole[tuple(map(slice, array.shape))] = array
        return found

    def differs_from_padding(self, ports: Sequence[Port], feeds: Feeds, fit: "BucketFit") -> bool:
        """Whether each padded input has a value that differs from its padding, so that a comparison can show
        a difference.
        """
        padded = [port for port in ports if fit.shape(port, feeds[port.name].shape) != feeds[port.name].shape]
        return all(bool((feeds[p.name] != self.pads.get(p.name, 0)).any()) for p in padded)


@dataclass(frozen=True, slots=True)
class BucketFit:
    """The sizes of bucketed dimensions, as `fed` and as `run`."""

    fed: Mapping[str, int]
    run: Mapping[str, int]

    @property
    def padded_dims(self) -> tuple[str, ...]:
        """The dimensions whose size fed is not a bucket's size."""
        return tuple(s for s in self.fed if self.fed[s] != self.run[s])

    @property
    def key(self) -> tuple[tuple[str, int, bool], ...]:
        """The key for which one comparison is valid: the buckets, and which of them are padded."""
        return tuple((s, n, n != self.fed[s]) for s, n in self.run.items())

    def only(self, symbol: str) -> "BucketFit":
        """The fit in which only `symbol` is padded."""
        return BucketFit(self.fed, {**self.fed, symbol: self.run[symbol]})

    def without(self, symbol: str | None) -> "BucketFit":
        """The fit without the dimension `symbol`."""
        sides = ({s: n for s, n in side.items() if s != symbol} for side in (self.fed, self.run))
        return BucketFit(*sides)

    def shape(self, port: Port, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The padded shape of a feed."""
        if port.dims is None:
            return shape
        named = zip(symbols(port), shape, strict=True)
        return tuple(n if symbol is None else self.run.get(symbol, n) for symbol, n in named)


def check_mapping(given: object, name: str, example: str) -> None:
    """Raise InputError unless an option is a mapping."""
    if not isinstance(given, Mapping):
        raise InputError(f"{name} is {given!r}; give a mapping, such as {example}.")


def find_cuts(ports: Sequence[Port], exact: Feeds, padded: Feeds, fit: BucketFit) -> Cuts:
    """For each output axis, the padded dimension with which it grows.

    Raises InputError for an axis that grows by another amount, or could belong to two dimensions.
    """
    found: dict[str, tuple[str | None, ...]] = {}
    for port in ports:
        was, became = exact[port.name].shape, padded[port.name].shape
        names = symbols(port) or (None,) * len(was)
        axes = [
            None if n == m else _grown(port, named, (n, m), fit)
            for named, n, m in zip(names, was, became, strict=True)
        ]
        found[port.name] = tuple(axes)
    return found


def cut(results: Feeds, cuts: Cuts, fit: BucketFit) -> dict[str, np.ndarray]:
    """Views of the results, cut to their sizes without padding."""
    return {y: results[y][(*(slice(s and fit.fed[s]) for s in axes), ...)] for y, axes in cuts.items()}


def find_differences(exact: Feeds, answers: Feeds) -> dict[str, float]:
    """The outputs that differ by more than rounding, with the difference as a fraction of their largest
    value.
    """
    parts = {y: _difference(a, answers[y]) for y, a in exact.items()}
    return {y: part for y, part in parts.items() if part > _rounding(exact[y].dtype)}


def _grown(port: Port, named: str | None, sizes: tuple[int, int], fit: BucketFit) -> str:
    """The dimension of an output axis, from its `sizes` without and with padding."""
    grown = [s for s in fit.padded_dims if (fit.fed[s], fit.run[s]) == sizes]
    if named in grown:
        return str(named)
    if len(grown) == 1:
        return grown[0]
    why = f"which {grown} both do: name its dimensions in the model" if grown else "which no bucket does"
    raise InputError(
        f"output {port.name!r} cannot be cut back: padding made an axis {sizes[1]} instead of {sizes[0]}, "
        f"{why}; or leave the bucket out."
    )


def _rounding(dtype: np.dtype) -> float:
    """The tolerance: float sums may be computed in another order; integers and bytes must be equal."""
    if dtype.kind in "biu" or dtype.itemsize == 1:
        return 0.0
    return _ROUNDING if dtype.itemsize > 2 else _ROUNDING_16


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    x, y = (z.astype(np.complex128 if z.dtype.kind == "c" else np.float64) for z in (a, b))
    is_finite = np.isfinite(x)
    if not np.array_equal(is_finite, np.isfinite(y)):
        return np.inf
    if not np.array_equal(x[~is_finite], y[~is_finite], equal_nan=True):
        return np.inf
    most = np.abs(x[is_finite] - y[is_finite]).max(initial=0.0)
    return float(most / np.abs(x[is_finite]).max(initial=1e-30))
