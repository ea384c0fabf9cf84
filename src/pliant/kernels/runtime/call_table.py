"""A table of kernel calls, run by one native call."""

import ctypes
from typing import final

import numpy as np

from pliant.arrays import Int64
from pliant.errors import KernelError
from pliant.kernels.runtime.walker import UNIT_BITS, TableEntry

ENTRY_DTYPE = np.dtype(
    [("kernel", np.uint64), ("args", np.uint64), ("n_units", np.int64), ("grain", np.int64)], align=True
)
MAX_UNITS = (1 << UNIT_BITS) - 1
"""The most units and grain, together, of one entry: the native pool keeps them in a ticket."""
assert ENTRY_DTYPE.itemsize == ctypes.sizeof(TableEntry)


@final
class CallTable:
    """Entries that run in order, each divided among the pool's threads. The table keeps arguments alive.

    A table must not change while a pool walks it. `address` is that of the first of `n_entries`; it changes
    when entries are added.
    """

    def __init__(self) -> None:
        self._args: list[ctypes.Structure] = []
        self.n_entries = 0
        self._keep(np.zeros(16, ENTRY_DTYPE))

    def add(self, kernel: int, args: ctypes.Structure, n_units: int, grain: int = 1) -> int:
        """Append `kernel(args, lo, hi, scratch)` over units 0..n_units-1; returns its number in the table.

        Raises KernelError for more than MAX_UNITS.
        """
        self._args.append(args)
        return self.append(kernel, ctypes.addressof(args), n_units, grain)

    def append(self, kernel: int, args: int, n_units: int, grain: int = 1) -> int:
        """As `add`, with arguments at an address that the caller keeps alive."""
        _check(n_units, grain)
        if self.n_entries == len(self._rows):
            self._keep(np.concatenate([self._rows, np.zeros_like(self._rows)]))
        self._rows[self.n_entries] = (kernel, args, n_units, grain)
        self.n_entries += 1
        return self.n_entries - 1

    def set_shares(self, shares: Int64[np.ndarray, "entries 2"]) -> None:
        """Set every entry's units and grain, in order, e.g. for another sequence length.

        Raises KernelError for more than MAX_UNITS, and changes nothing.
        """
        if shares.size:
            _check(*shares[shares.sum(axis=1).argmax()].tolist())
        self._shares[: self.n_entries] = shares

    def _keep(self, rows: np.ndarray) -> None:
        self._rows, self._shares = rows, rows.view(np.int64).reshape(-1, 4)[:, 2:]
        self.address = int(rows.ctypes.data)


def _check(n_units: int, grain: int) -> None:
    assert n_units >= 0, f"{n_units} units"
    assert grain >= 1, f"a grain of {grain} units"
    if n_units + grain > MAX_UNITS:
        raise KernelError(
            f"{n_units} units of work are more than the {MAX_UNITS} that a call counts; feed smaller shapes."
        )
