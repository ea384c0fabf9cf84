"""A program for open sizes: numbers that depend on the sizes are computed, not compiled."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from pliant.arrays import Int64
from pliant.compiler.executable.assemble_image import OFFSET, Image
from pliant.compiler.executable.binding import ProgramNumbers
from pliant.compiler.executable.encode_image import ArgumentAddress, EncodedProgram, encode
from pliant.compiler.executable.place_tensors import Lifetime, Placement, place_tensors
from pliant.ir.graph import TensorType
from pliant.ir.symbolic import Trace, canonical

_MOST_ROOMS = 16
"""The number of cached placements: one for each power of two that bounds the sizes."""


@final
class SymbolicProgram:
    """An image's program and its numbers that depend on the sizes with the symbols `names` of `trace`.

    Made after the last condition was recorded. The arena is laid out once for all sizes up to the same powers
    of two, with tensors at their largest.
    """

    def __init__(self, image: Image, trace: Trace, names: Sequence[str]) -> None:
        self.program = encode(image)
        self._tensors = image.tensors
        self._rooms: dict[tuple[int, ...], tuple[Placement, tuple[int, ...]]] = {}
        self._numbers: list[int] = []
        self._places: dict[object, int] = {}
        program = self.program
        self._words = self._word_places()
        self._offsets = self._all([a.offset for a in program.addresses])
        self._shares = self._all([n for r in program.rows for n in (r.n_units, r.grain)])
        self._costs = self._all([n for r in program.rows for n in (r.flops, r.n_bytes)])
        self._copies = [self._place(copy.offset) for copy in program.copies]
        self._inputs, self._outputs = (
            [(x, t.dtype, tuple(map(self._place, t.shape))) for x, t in side.items()]
            for side in (program.inputs, program.outputs)
        )
        self._scratch = self._place(program.scratch_bytes)
        offsets = [f"{OFFSET}{i}" for i in range(len(self._tensors))]
        self._evaluate = trace.evaluator([*names, *offsets], self._numbers)
        self._sizes = trace.evaluator(names, [t.n_bytes for t in self._tensors])
        self._holds = trace.checker(names)

    def is_valid_for(self, sizes: Sequence[int]) -> bool:
        """Whether the program is valid for these sizes: compiling would make the same decisions."""
        return self._holds(*sizes)

    def numbers(self, sizes: Sequence[int]) -> ProgramNumbers:
        """The program's addresses and numbers for sizes for which it is valid; the calls are the same."""
        return self._made(sizes)[0]

    def at(self, sizes: Sequence[int]) -> EncodedProgram:
        """The whole program for sizes for which it is valid."""
        program = self.program
        numbers, values = self._made(sizes)
        arguments = np.frombuffer(program.arguments, np.uint8).copy()
        for type_, at, words in numbers.words:
            n_bytes = type_.itemsize
            arguments[at[:, None] * n_bytes + np.arange(n_bytes)] = words.astype(type_)[:, None].view(
                np.uint8
            )
        offsets, shares, costs = numbers.offsets.tolist(), numbers.shares.tolist(), values[self._costs]
        return replace(
            program,
            arguments=arguments.tobytes(),
            addresses=tuple(
                ArgumentAddress(a.at, a.space, offset)
                for a, offset in zip(program.addresses, offsets, strict=True)
            ),
            rows=tuple(
                replace(row, n_units=n_units, grain=grain, flops=flops, n_bytes=n_bytes)
                for row, (n_units, grain), (flops, n_bytes) in zip(
                    program.rows, shares, costs.reshape(-1, 2).tolist(), strict=True
                )
            ),
            copies=numbers.copies,
            inputs=numbers.inputs,
            outputs=numbers.outputs,
            arena_bytes=numbers.arena_bytes,
            scratch_bytes=numbers.scratch_bytes,
            numbers=(),
        )

    def _made(self, sizes: Sequence[int]) -> tuple[ProgramNumbers, Int64[np.ndarray, " numbers"]]:
        placed = self._placed(sizes)
        found = self._evaluate(*sizes, *placed.offsets)
        values = np.array(found, np.int64)
        copies = zip(self.program.copies, self._copies, strict=True)
        numbers = ProgramNumbers(
            words=[(type_, at, values[places]) for type_, at, places in self._words],
            offsets=values[self._offsets],
            shares=values[self._shares].reshape(-1, 2),
            copies=tuple(replace(copy, offset=found[i]) for copy, i in copies),
            inputs=_types(self._inputs, found),
            outputs=_types(self._outputs, found),
            arena_bytes=placed.n_bytes,
            scratch_bytes=found[self._scratch],
        )
        return numbers, values

    def _word_places(self) -> list[tuple[np.dtype, np.ndarray, np.ndarray]]:
        """The symbolic numbers among the arguments by type: type, positions, and numbers."""
        found: dict[int, list[tuple[int, int]]] = {}
        for at, n_bytes, number in self.program.numbers:
            assert at % n_bytes == 0, f"a number of {n_bytes} bytes at byte {at}"
            found.setdefault(n_bytes, []).append((at // n_bytes, self._place(number)))
        return [
            (np.dtype(f"i{n_bytes}"), *np.array(words, np.intp).T.copy()) for n_bytes, words in found.items()
        ]

    def _placed(self, sizes: Sequence[int]) -> Placement:
        """The placement for these sizes: that of the next powers of two, unless a tensor is smaller there."""
        room = tuple(1 << (n - 1).bit_length() for n in sizes)
        if room not in self._rooms:
            if len(self._rooms) == _MOST_ROOMS:
                self._rooms.clear()
            most = self._sizes(*room)
            self._rooms[room] = self._placement(most), most
        placed, most = self._rooms[room]
        own = self._sizes(*sizes)
        return placed if all(map(operator.le, own, most)) else self._placement(own)

    def _placement(self, n_bytes: Sequence[int]) -> Placement:
        return place_tensors(
            [Lifetime(n, t.first, t.last) for n, t in zip(n_bytes, self._tensors, strict=True)]
        )

    def _all(self, numbers: Sequence[int]) -> np.ndarray:
        """The indices of several numbers among the computed numbers."""
        return np.array([self._place(number) for number in numbers], np.intp)

    def _place(self, number: int) -> int:
        """The index of a number among the computed numbers."""
        known = canonical(number)
        if known not in self._places:
            self._places[known] = len(self._numbers)
            self._numbers.append(number)
        return self._places[known]


def _types(
    dims: Sequence[tuple[str, str, tuple[int, ...]]], values: Sequence[int]
) -> Mapping[str, TensorType]:
    return {x: TensorType(dtype, tuple([values[i] for i in places])) for x, dtype, places in dims}
