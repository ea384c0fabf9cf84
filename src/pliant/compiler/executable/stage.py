"""Graphs compiled once and bound many times: a stage is one native call."""

from collections.abc import Mapping
from typing import final

import numpy as np

from pliant.arrays import Float64, Int64
from pliant.compiler.executable.assemble_image import Image, assemble
from pliant.compiler.executable.binding import BoundProgram
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import EncodedProgram, encode
from pliant.compiler.rules import lower_encoder as coded
from pliant.ir.executable import ARENA
from pliant.ir.graph import Graph
from pliant.kernels.runtime.buffer import Buffer
from pliant.kernels.runtime.thread_pool import ThreadPool


def coded_form(graph: Graph, target: Target) -> "StageForm":
    """The form of a graph of the local engine's operators."""
    return StageForm(
        assemble(graph, [coded.RULES[node.op](node, graph, target) for node in graph.nodes], target)
    )


_MOST_SHARES = 1024
"""The number of cached shares: one for every length of a single text, and for batches while there is room."""


@final
class StageForm:
    """An image for up to as many rows as its tensors have, shared by stages with different weights."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.program = encode(image)
        self.n_bytes = _sizes(self.program)
        self._shares: dict[tuple[int, ...], np.ndarray] = {}

    def shares(self, lengths: tuple[int, ...]) -> Int64[np.ndarray, "calls 2"]:
        """Units and grain of every call over texts of `lengths` rows."""
        known = self._shares.get(lengths)
        if known is None:
            if len(self._shares) == _MOST_SHARES:
                self._shares.clear()
            known = self._shares[lengths] = self.image.shares(lengths)
        return known


def _sizes(program: EncodedProgram) -> dict[str, int]:
    """The bytes of each space, as known from the program: for weights, up to the last address."""
    ends = {ARENA: program.arena_bytes}
    for address in program.addresses:
        ends[address.space] = max(ends.get(address.space, 0), address.offset)
    return ends | {x: t.n_bytes for x, t in (*program.inputs.items(), *program.outputs.items())}


@final
class BoundStage:
    """A form bound to memory, which it keeps alive."""

    def __init__(self, form: StageForm, kernels: Mapping[str, int], at: Mapping[str, Buffer]) -> None:
        """Raises ValueError for a buffer that is too small."""
        self._form = form
        self._bound = BoundProgram(form.program, kernels)
        self._outputs = {copy.output: at[copy.output] for copy in form.program.copies}
        for space in self._bound.spaces:
            at[space].require(form.n_bytes.get(space, 0), space)
            self.point(space, at[space])
        self._lengths: tuple[int, ...] | None = None

    def point(self, space: str, buffer: Buffer) -> None:
        """Set the memory of `space` to `buffer`, which must have room for the rows of each walk."""
        if space in self._outputs:
            self._outputs[space] = buffer
        self._bound.point(space, buffer)

    def walk(self, lengths: tuple[int, ...], pool: ThreadPool) -> None:
        """Run over the first rows: the concatenated rows of texts of `lengths` rows."""
        if lengths != self._lengths:
            self._cut(lengths)
        pool.walk(self._bound.table)
        if self._outputs:
            self._bound.copy(self._outputs)

    def walk_timed(self, lengths: tuple[int, ...], pool: ThreadPool) -> Float64[np.ndarray, " ends"]:
        """As `walk` without output copies; returns the result of `ThreadPool.walk_timed`."""
        if lengths != self._lengths:
            self._cut(lengths)
        return pool.walk_timed(self._bound.table)

    def _cut(self, lengths: tuple[int, ...]) -> None:
        self._lengths = None  # after an interrupt it is set to no number of rows
        self._bound.cut(sum(lengths), self._form.shares(lengths))
        self._lengths = lengths
