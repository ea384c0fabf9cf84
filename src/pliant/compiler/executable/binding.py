"""Bind an encoded program to memory: write addresses into its arguments and its table."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from pliant.arrays import Int64
from pliant.compiler.executable.encode_image import EncodedProgram, OutputCopy
from pliant.errors import InputError
from pliant.ir.graph import TensorType
from pliant.kernels.runtime.aligned_memory import address, aligned_bytes
from pliant.kernels.runtime.buffer import Buffer
from pliant.kernels.runtime.call_table import CallTable

_MOST_CELLS = 4
"""Up to this many addresses of a space are written one by one; updating the whole table takes as long as
about this many.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ProgramNumbers:
    """The numbers of a program that depend on open sizes, for given sizes.

    `words` are numbers among the arguments: their type, their positions in units of it, and their values.
    `offsets` has one for each address, `shares` units and grain of each call.
    """

    words: Sequence[tuple[np.dtype, Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]]
    offsets: Int64[np.ndarray, " addresses"]
    shares: Int64[np.ndarray, "calls 2"]
    copies: tuple[OutputCopy, ...]
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    arena_bytes: int
    scratch_bytes: int


@final
class BoundProgram:
    """A program bound to memory; a pool may walk `table` when every space has an address.

    `kernels` are addresses by name. Buffers passed to `point` are kept alive; arrays passed to `lend` must be
    kept alive by the caller.
    """

    def __init__(self, program: EncodedProgram, kernels: Mapping[str, int]) -> None:
        self._copies, self._outputs = program.copies, program.outputs
        self._table = CallTable()
        self._arguments = aligned_bytes(-(-len(program.arguments) // 8) * 8)
        self._arguments[: len(program.arguments)] = np.frombuffer(program.arguments, np.uint8)
        self._words = self._arguments.view(np.int64)
        self._extents = np.array(program.extents, np.intp) // 8
        self._indexing = [row for row in program.rows if row.fault is not None]
        self._faults = np.array([r.arguments + (r.fault or 0) for r in self._indexing], np.intp) // 8
        named = [*(a.space for a in program.addresses), *(copy.space for copy in program.copies)]
        self._spaces = {space: i for i, space in enumerate(dict.fromkeys(named))}
        self._bases = np.zeros(len(self._spaces) + 1, np.int64)  # and one for unused spaces
        self._kept: dict[str, Buffer] = {}
        self._pointers = np.array([a.at for a in program.addresses], np.intp) // 8
        self._pointed = np.array([self._spaces[a.space] for a in program.addresses], np.intp)
        self._offsets = np.array([a.offset for a in program.addresses], np.int64)
        self._cells = self._words.data
        self._places = [np.flatnonzero(self._pointed == i).tolist() for i in range(len(self._spaces))]
        self._is_stale = True
        start = self._arguments.ctypes.data
        for row in program.rows:
            self._table.append(kernels[row.kernel], start + row.arguments, row.n_units, row.grain)

    @property
    def table(self) -> CallTable:
        """The calls with the current addresses of all spaces."""
        if self._is_stale:
            self._words[self._pointers] = self._bases[self._pointed] + self._offsets
            self._is_stale = False
        return self._table

    @property
    def spaces(self) -> tuple[str, ...]:
        """The spaces that calls read or write, or that are copied."""
        return tuple(self._spaces)

    def point(self, space: str, buffer: Buffer) -> None:
        """Set the memory of `space` to `buffer`."""
        at = self._spaces.get(space)
        if at is not None:
            self._bases[at] = buffer.address
            self._kept[space] = buffer
            self._is_stale = True

    def lend(self, space: str, array: np.ndarray) -> None:
        """Set the memory of `space` to the contiguous `array` without keeping it alive: arrays of one run, or
        an arena that may move.
        """
        at = self._spaces.get(space)
        if at is not None:
            self._bases[at] = base = address(array)
            places = self._places[at]
            if len(places) > _MOST_CELLS:
                self._is_stale = True
                return
            for i in places:
                self._cells[self._pointers.item(i)] = base + self._offsets.item(i)

    def slots(self, spaces: Sequence[str]) -> Int64[np.ndarray, " spaces"]:
        """The slots of `spaces` for `place`; unused spaces share one slot."""
        return np.array([self._spaces.get(space, len(self._spaces)) for space in spaces], np.int64)

    def place(self, slots: Int64[np.ndarray, " spaces"], addresses: Sequence[int]) -> None:
        """As `lend`, for several spaces at once, given the addresses of arrays that the caller keeps
        alive.
        """
        self._bases[slots] = addresses
        self._is_stale = True

    def cut(self, n: int, shares: Int64[np.ndarray, "calls 2"]) -> None:
        """Set the extent to `n` and each call's units and grain."""
        self._words[self._extents] = n
        self._table.set_shares(shares)

    def resize(self, numbers: ProgramNumbers) -> None:
        """Change the program to other sizes."""
        for type_, at, values in numbers.words:
            self._arguments.view(type_)[at] = values
        self._offsets, self._copies, self._outputs = numbers.offsets, numbers.copies, numbers.outputs
        self._is_stale = True
        self._table.set_shares(numbers.shares)

    def check(self) -> None:
        """After a walk: raise InputError if a kernel reported an index out of range."""
        if not self._indexing:
            return
        dims = self._words[self._faults]
        if not np.count_nonzero(dims):
            return
        first = int(np.flatnonzero(dims)[0])
        at, row = int(self._faults[first]), self._indexing[first]
        dim, index = self._words[at : at + 2].tolist()
        self._words[self._faults] = 0
        raise InputError(
            f"node {row.label!r} ({row.op}) was given the index {index}, but its dimension has {dim}: give "
            f"{-dim} to {dim - 1}. Check the ids that are fed."
        )

    def copy(self, outputs: Mapping[str, np.ndarray | Buffer]) -> None:
        """After a walk: fill the outputs that are copies of another tensor."""
        for copy in self._copies:
            source = int(self._bases[self._spaces[copy.space]]) + copy.offset
            output = outputs[copy.output]
            to = output.address if isinstance(output, Buffer) else address(output)
            ctypes.memmove(to, source, self._outputs[copy.output].n_bytes)
