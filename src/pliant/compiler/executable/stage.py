"""Graphs compiled once and bound many times: a stage is one native call."""

from collections.abc import Mapping
from typing import final

import numpy as np

from pliant.arrays import Float64, Int64
from pliant.compiler.executable.assemble_image import Image, assemble
from pliant.compiler.executable.binding import Bound
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import encode
from pliant.compiler.rules import lower_encoder as coded
from pliant.ir.graph import Graph
from pliant.kernels.runtime.thread_pool import Pool


def coded_form(graph: Graph, target: Target) -> "Form":
    """A graph of the local engine's own operators."""
    return Form(assemble(graph, [coded.RULES[node.op](node, graph, target) for node in graph.nodes], target))


_MOST_SHARES = 1024
"""Lengths whose shares are kept: every length of one text, and batches for as long as there is room."""


@final
class Form:
    """An image for as many rows as its tensors have: what stages that differ in weights share."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.program = encode(image)
        self._shares: dict[tuple[int, ...], np.ndarray] = {}

    def shares(self, lengths: tuple[int, ...]) -> Int64[np.ndarray, "calls 2"]:
        """Units and grain of every call over texts of `lengths` rows."""
        known = self._shares.get(lengths)
        if known is None:
            if len(self._shares) == _MOST_SHARES:
                self._shares.clear()
            known = self._shares[lengths] = self.image.shares(lengths)
        return known


@final
class Stage:
    """A form with an address for everything it reads and writes; the caller keeps that memory alive."""

    def __init__(self, form: Form, kernels: Mapping[str, int], at: Mapping[str, int]) -> None:
        self._form = form
        self._bound = Bound(form.program, kernels)
        for space in self._bound.spaces:
            self._bound.point(space, at[space])
        self._outputs = {copy.output: at[copy.output] for copy in form.program.copies}
        self._lengths: tuple[int, ...] | None = None

    def point(self, space: str, address: int) -> None:
        """From now on `space`, which is no copy, is at `address`."""
        self._bound.point(space, address)

    def walk(self, lengths: tuple[int, ...], pool: Pool) -> None:
        """Run over the first rows: those of texts of `lengths` rows, one behind the other."""
        if lengths != self._lengths:
            self._cut(lengths)
        pool.walk(self._bound.table)
        if self._outputs:
            self._bound.copy(self._outputs)

    def walk_timed(self, lengths: tuple[int, ...], pool: Pool) -> Float64[np.ndarray, " ends"]:
        """As `walk`, but for outputs that are copies; what `Pool.walk_timed` gives."""
        if lengths != self._lengths:
            self._cut(lengths)
        return pool.walk_timed(self._bound.table)

    def _cut(self, lengths: tuple[int, ...]) -> None:
        self._lengths = None  # an interrupt on the way leaves it cut to no number of rows
        self._bound.cut(sum(lengths), self._form.shares(lengths))
        self._lengths = lengths
