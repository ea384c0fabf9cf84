"""Stage times on several devices at once, from their curves in vectorised form."""

from functools import lru_cache
from itertools import zip_longest
from typing import final

import numpy as np

from pliant.arrays import Float
from pliant.ir.capability import Capability
from pliant.plan.partition.sizes import AffineCost

TimeTable = Float[np.ndarray, "devices _"]
"""Seconds of each device (row) for 0, 1, 2, ... heads, rows or columns; column 0 is zero."""
_Piece = tuple[Float[np.ndarray, " devices"], ...]
_NO_PIECE = (np.inf, 0.0, 0.0, 0.0)
"""Padding for a curve with fewer pieces than another's: applies to no size."""


@final
class DeviceTimes:
    """`Capability.seconds` of all `devices` for arrays of operations; thread-safe.

    The curves of a kind are vectorised on first use, because solvers make thousands of calls.
    """

    def __init__(self, devices: tuple[Capability, ...]) -> None:
        self.devices = devices
        self._pieces: dict[str, tuple[_Piece, ...]] = {}

    def seconds(
        self, kind: str, ops: Float[np.ndarray, "*some devices"]
    ) -> Float[np.ndarray, "*some devices"]:
        """Return the time of one stage of `kind` with these operations on each device; 0 for none."""
        if kind not in self._pieces:
            self._pieces[kind] = self._stack_pieces(kind)
        times = np.zeros_like(ops)
        for first, start, seconds, slope in self._pieces[kind]:
            np.copyto(times, seconds + slope * (ops - start), where=ops >= first)
        return np.where(ops > 0, times, 0.0)

    def _stack_pieces(self, kind: str) -> tuple[_Piece, ...]:
        """Return the pieces of all curves, one column per device."""
        each = [device.curve(kind).pieces for device in self.devices]
        rows = zip_longest(*each, fillvalue=_NO_PIECE)
        return tuple(tuple(np.array(column) for column in zip(*row, strict=True)) for row in rows)


@lru_cache(maxsize=512)
def time_table(devices: tuple[Capability, ...], kind: str, amount: AffineCost, most: int) -> TimeTable:
    """Return the seconds of 0 to `most` units of `amount`, as `Capability.seconds` gives them; read-only."""
    ops = amount.fixed + amount.each * np.arange(most + 1.0)
    ops[0] = 0.0
    times: TimeTable = np.empty((len(devices), most + 1))
    for row, device in zip(times, devices, strict=True):
        pieces = device.curve(kind).pieces
        begins = np.searchsorted(ops, [piece[0] for piece in pieces])
        for begin, (_, start, seconds, slope) in zip(begins, pieces, strict=True):
            row[begin:] = seconds + slope * (ops[begin:] - start)
    times[:, ops <= 0] = 0.0
    times.setflags(write=False)
    return times
