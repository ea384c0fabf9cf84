"""A partition: each device's heads, rows and columns in every layer (Hepti 4.2)."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal, get_args

from pliant.errors import InputError
from pliant.ir.bitwidths import PLANES

Mode = Literal["ws", "1d", "2d"]
"""Weight-stationary, 1D-tiled and 2D-tiled weight-stationary (Hepti, Figures 4 and 5)."""


@dataclass(frozen=True, slots=True)
class Share:
    """One device's share of every layer: attention heads, rows (tokens), columns of the feed forward.

    These are counts; ranges follow from the order of the shares. A device with all counts 0 takes no part.
    """

    device: str
    heads: int = 0
    rows: int = 0
    columns: int = 0

    def __post_init__(self) -> None:
        if not self.device or self.device.split() != [self.device] or "/" in self.device:
            raise InputError(
                f"{self.device!r} is not a device's name: take letters and digits, no blank or '/'."
            )
        counts = {"heads": self.heads, "rows": self.rows, "columns": self.columns}
        for what, n in counts.items():
            if n < 0:
                raise InputError(f"{self.device} cannot take {n} {what}; give 0 or more.")

    @property
    def is_empty(self) -> bool:
        return not (self.heads or self.rows or self.columns)


@dataclass(frozen=True, slots=True)
class DeviceGrid:
    """The devices of the 2D-tiled mode as `groups` (rows of the grid) of equal length.

    A device in group g and column c multiplies tiles of the weights: of the attention's output product the
    rows of its group's heads and the `outputs[c]` columns of its column, of the feed forward's first product
    the `hidden[g]` rows of its group and its column's neurons, of the second the transpose.
    """

    groups: tuple[tuple[str, ...], ...]
    outputs: tuple[int, ...]
    hidden: tuple[int, ...]

    def __post_init__(self) -> None:
        widths = {len(group) for group in self.groups}
        if len(widths) != 1 or 0 in widths:
            raise InputError(
                f"the groups of a grid need as many devices each, at least 1, not {self.groups}."
            )
        if len(self.outputs) != len(self.groups[0]) or len(self.hidden) != len(self.groups):
            raise InputError(
                f"a grid of {len(self.groups)} groups of {len(self.groups[0])} needs as many hidden blocks "
                f"and output blocks, not {self.hidden} and {self.outputs}."
            )
        if min(*self.outputs, *self.hidden, 0) < 0 or sum(self.outputs) != sum(self.hidden):
            raise InputError(
                f"blocks of {self.outputs} and of {self.hidden} columns do not cut one hidden size; "
                "give numbers of 0 or more with equal sums."
            )
        _check_distinct(self.devices)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices group by group."""
        return tuple(device for group in self.groups for device in group)

    @property
    def columns(self) -> tuple[tuple[str, ...], ...]:
        """The devices column by column."""
        return tuple(zip(*self.groups, strict=True))


@dataclass(frozen=True, slots=True)
class Partition:
    """One decision about all layers: the mode, the primary (which has input and answer), and every share.

    Rows add up to `tokens`. Heads and columns add up to the model's, which `plan.split.stages.check` checks;
    the weight-stationary mode cuts no columns. `grid` is set only in the 2D-tiled mode. `bits` are those of
    each layer's matrices if they stay in a store's codes; empty if they are float32. Raises InputError naming
    the inconsistency.
    """

    mode: Mode
    primary: str
    shares: tuple[Share, ...]
    tokens: int
    grid: DeviceGrid | None = None
    bits: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(not 1 <= bits <= PLANES for bits in self.bits):
            raise InputError(f"layers of {list(self.bits)} bits do not exist; give 1 to {PLANES} for each.")
        if self.mode not in get_args(Mode):
            raise InputError(f"no mode is called {self.mode!r}; give one of {get_args(Mode)}.")
        if self.tokens < 1:
            raise InputError(f"{self.tokens} tokens cannot be shared out; give at least 1.")
        _check_distinct(self.devices)
        if self.primary not in self.devices:
            raise InputError(
                f"the primary {self.primary!r} is none of {list(self.devices)}; give it a share."
            )
        n_rows = sum(share.rows for share in self.shares)
        if n_rows != self.tokens:
            raise InputError(f"shares of {n_rows} rows do not make {self.tokens} tokens.")
        if self.n_heads < 1:
            raise InputError("no device takes a head: the shares' heads add up to the model's.")
        if (self.mode == "ws") != (self.n_columns == 0):
            raise InputError(
                f"{self.n_columns} columns of the feed forward are shared out, but mode {self.mode!r} "
                f"{'cuts none' if self.mode == 'ws' else 'needs all of them'}."
            )
        self._check_grid()

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices, including those without a share."""
        return tuple(share.device for share in self.shares)

    @property
    def participants(self) -> tuple[str, ...]:
        """The devices that compute, in order: those with a share or a position in the grid."""
        placed = () if self.grid is None else self.grid.devices
        return tuple(s.device for s in self.shares if not s.is_empty or s.device in placed)

    @property
    def n_heads(self) -> int:
        return sum(share.heads for share in self.shares)

    @property
    def n_columns(self) -> int:
        return sum(share.columns for share in self.shares)

    def resize(self, tokens: int, n_heads: int = 0, n_columns: int = 0, n_layers: int = 0) -> "Partition":
        """Return the partition for `tokens` tokens, with rows in proportion; 0 keeps the model's sizes.

        Heads and columns of a smaller model are also in proportion.
        """
        rows = _cut([share.rows for share in self.shares], tokens)
        heads = _cut([share.heads for share in self.shares], n_heads or self.n_heads)
        columns = _cut([share.columns for share in self.shares], n_columns or self.n_columns)
        shares = tuple(
            replace(share, rows=r, heads=h, columns=c)
            for share, r, h, c in zip(self.shares, rows, heads, columns, strict=True)
        )
        return replace(self, shares=shares, tokens=tokens, bits=self.bits[: n_layers or None])

    def on_device(self, device: str) -> "Partition":
        """Return the same work on one of its devices, in the weight-stationary mode."""
        shares = tuple(
            Share(one, self.n_heads, self.tokens) if one == device else Share(one) for one in self.devices
        )
        return replace(self, mode="ws", shares=shares, grid=None)

    def share(self, device: str) -> Share:
        """Return a device's share. Raises InputError for an unknown device."""
        for share in self.shares:
            if share.device == device:
                return share
        raise InputError(f"{device!r} is not a device of this partition, which has {list(self.devices)}.")

    def heads(self, device: str) -> range:
        return _range(device, [(s.device, s.heads) for s in self.shares])

    def rows(self, device: str) -> range:
        return _range(device, [(s.device, s.rows) for s in self.shares])

    def columns(self, device: str) -> range:
        """Return neurons of the feed forward; in a grid, those of one column of devices are contiguous."""
        order = self.devices if self.grid is None else [d for column in self.grid.columns for d in column]
        return _range(device, [(d, self.share(d).columns) for d in order])

    def _check_grid(self) -> None:
        if (self.grid is not None) != (self.mode == "2d"):
            raise InputError(f"mode {self.mode!r} {'needs a' if self.mode == '2d' else 'takes no'} grid.")
        if self.grid is None:
            return
        placed = [d for d in self.devices if d in self.grid.devices]
        if placed != list(self.grid.devices):
            raise InputError(
                f"the grid's devices {list(self.grid.devices)} need shares, in that order: {placed}."
            )
        for share in self.shares:
            if share.device not in self.grid.devices and not share.is_empty:
                raise InputError(f"{share.device} has a share but no place in the grid.")


def _cut(counts: list[int], total: int) -> list[int]:
    """Divide `total` in the proportions of `counts`; all 0 if `counts` are."""
    ends = list(accumulate(counts, initial=0))
    return [b - a for a, b in pairwise(round(total * end / ends[-1]) if ends[-1] else 0 for end in ends)]


def _range(device: str, counts: list[tuple[str, int]]) -> range:
    ends = list(accumulate(n for _, n in counts))
    for (name, n), end in zip(counts, ends, strict=True):
        if name == device:
            return range(end - n, end)
    return range(0)


def _check_distinct(devices: Iterable[str]) -> None:
    names = list(devices)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"devices {twice} are named more than once.")
