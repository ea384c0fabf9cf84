"""Bind an encoded program to memory: write addresses into its arguments and its table."""

import ctypes
from collections.abc import Mapping
from typing import final

import numpy as np

from pliant.arrays import Int64
from pliant.compiler.executable.encode_image import Encoded
from pliant.errors import InputError
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.call_table import Table


@final
class Bound:
    """One program, ready for a pool to walk `table` once every space it names has an address.

    `kernels` are addresses by name. What stands at an address is the caller's, who keeps it alive.
    """

    def __init__(self, program: Encoded, kernels: Mapping[str, int]) -> None:
        self.program = program
        self.table = Table()
        self._arguments = aligned_bytes(len(program.arguments))
        self._arguments[:] = np.frombuffer(program.arguments, np.uint8)
        self._words = self._arguments[: len(self._arguments) // 8 * 8].view(np.uint64)
        self._extents = np.array(program.extents, np.intp) // 8
        self._indexing = [row for row in program.rows if row.fault is not None]
        self._faults = np.array([r.arguments + (r.fault or 0) for r in self._indexing], np.intp) // 8
        self._pointers: dict[str, list[tuple[int, int]]] = {}
        self._bases: dict[str, int] = {}
        for a in program.addresses:
            self._pointers.setdefault(a.space, []).append((a.at // 8, a.offset))
        start = self._arguments.ctypes.data
        for row in program.rows:
            self.table.append(kernels[row.kernel], start + row.arguments, row.n_units, row.grain)

    @property
    def spaces(self) -> tuple[str, ...]:
        """What the calls read and write, and what is copied."""
        return (*self._pointers, *(copy.space for copy in self.program.copies))

    def point(self, space: str, address: int) -> None:
        """From now on `space` is at `address`."""
        self._bases[space] = address
        for word, offset in self._pointers.get(space, ()):
            self._words[word] = address + offset

    def cut(self, n: int, shares: Int64[np.ndarray, "calls 2"]) -> None:
        """From now on the extent is `n`, and the calls have these units and this grain."""
        self._words[self._extents] = n
        self.table.share(shares)

    def check(self) -> None:
        """After a walk: raise InputError if a kernel met an index outside its dimension."""
        if not self._indexing:
            return
        dims = self._words[self._faults]
        if not dims.any():
            return
        first = int(np.flatnonzero(dims)[0])
        at, row = int(self._faults[first]), self._indexing[first]
        dim, index = self._words[at : at + 2].view(np.int64).tolist()
        self._words[self._faults] = 0
        raise InputError(
            f"node {row.label!r} ({row.op}) was given the index {index}, but its dimension has {dim}: give "
            f"{-dim} to {dim - 1}. Check the ids that are fed."
        )

    def copy(self, outputs: Mapping[str, int]) -> None:
        """After a walk: fill the outputs, given by their addresses, that are copies of something else."""
        for copy in self.program.copies:
            n_bytes = self.program.outputs[copy.output].n_bytes
            ctypes.memmove(outputs[copy.output], self._bases[copy.space] + copy.offset, n_bytes)
