"""A program for open sizes: what other sizes change in it is computed, not compiled."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast, final

from pliant.compiler.executable.assemble_image import OFFSET, Image
from pliant.compiler.executable.encode_image import Address, Encoded, Row, encode
from pliant.compiler.executable.place import Lifetime, Placement, place
from pliant.ir.graph import TensorType
from pliant.ir.symbolic import Trace, canonical, is_symbolic

_MOST_ROOMS = 16
"""Placements that are kept: one for each power of two that sizes are below."""


@final
class SymbolicProgram:
    """An image's program and what of it follows from the sizes that `trace` calls `names`.

    Made after the last condition was noted. The arena is laid out once for all sizes up to the same powers of
    two, where tensors are as large as they get.
    """

    def __init__(self, image: Image, trace: Trace, names: Sequence[str]) -> None:
        self.program = encode(image)
        self._tensors = image.tensors
        self._rooms: dict[tuple[int, ...], tuple[Placement, tuple[int, ...]]] = {}
        self._numbers: list[int] = []
        self._places: dict[object, int] = {}
        program = self.program
        self._words = [(at, n_bytes, self._place(n)) for at, n_bytes, n in program.numbers]
        self._shifts = [
            (i, self._place(cast(int, a.offset)))
            for i, a in enumerate(program.addresses)
            if is_symbolic(a.offset)
        ]
        self._rows = [tuple(map(self._place, (r.n_units, r.grain, r.flops, r.n_bytes))) for r in program.rows]
        self._copies = [self._place(copy.offset) for copy in program.copies]
        self._dims = {
            x: tuple(map(self._place, t.shape))
            for x, t in (*program.inputs.items(), *program.outputs.items())
        }
        self._scratch = self._place(program.scratch_bytes)
        offsets = [f"{OFFSET}{i}" for i in range(len(self._tensors))]
        self._evaluate = trace.evaluator([*names, *offsets], self._numbers)
        self._sizes = trace.evaluator(names, [t.n_bytes for t in self._tensors])
        self._holds = trace.checker(names)

    def holds(self, sizes: Sequence[int]) -> bool:
        """Whether the program is that of these sizes: compiling would decide as it did."""
        return self._holds(*sizes)

    def at(self, sizes: Sequence[int]) -> Encoded:
        """The program for sizes for which it holds."""
        placed = self._placed(sizes)
        program = self.program
        values = self._evaluate(*sizes, *placed.offsets)
        arguments = bytearray(program.arguments)
        for at, n_bytes, i in self._words:
            arguments[at : at + n_bytes] = values[i].to_bytes(n_bytes, "little", signed=True)
        addresses = list(program.addresses)
        for n, i in self._shifts:
            was = addresses[n]
            addresses[n] = Address(was.at, was.space, values[i])
        rows = []
        for row, (n_units, grain, flops, n_bytes) in zip(program.rows, self._rows, strict=True):
            about = row.label, row.op, values[flops], values[n_bytes]
            rows.append(Row(row.kernel, row.arguments, values[n_units], values[grain], *about, row.fault))
        return replace(
            program,
            arguments=bytes(arguments),
            addresses=tuple(addresses),
            rows=tuple(rows),
            copies=tuple(
                replace(copy, offset=values[i]) for copy, i in zip(program.copies, self._copies, strict=True)
            ),
            inputs=self._types(program.inputs, values),
            outputs=self._types(program.outputs, values),
            arena_bytes=placed.n_bytes,
            scratch_bytes=values[self._scratch],
            numbers=(),
        )

    def _types(self, types: Mapping[str, TensorType], values: Sequence[int]) -> dict[str, TensorType]:
        return {x: TensorType(t.dtype, tuple(values[i] for i in self._dims[x])) for x, t in types.items()}

    def _placed(self, sizes: Sequence[int]) -> Placement:
        """Where tensors of these sizes lie: as at the next powers of two, unless one is smaller there."""
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
        return place([Lifetime(n, t.first, t.last) for n, t in zip(n_bytes, self._tensors, strict=True)])

    def _place(self, number: int) -> int:
        """The place of a number among those that are computed."""
        known = canonical(number)
        if known not in self._places:
            self._places[known] = len(self._numbers)
            self._numbers.append(number)
        return self._places[known]
