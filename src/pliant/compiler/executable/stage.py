"""Graphs compiled once and bound many times: a stage is one native call."""

from collections.abc import Mapping
from typing import final

import numpy as np

from pliant.arrays import Int64
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


@final
class Form:
    """An image for as many rows as its tensors have: what stages that differ in weights share."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.program = encode(image)
        self._shares: dict[int, np.ndarray] = {}

    def shares(self, n_rows: int) -> Int64[np.ndarray, "calls 2"]:
        """Units and grain of every call over `n_rows` rows."""
        known = self._shares.get(n_rows)
        if known is None:
            known = self._shares[n_rows] = self.image.shares(n_rows)
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
        self._n_rows: int | None = None

    def walk(self, n_rows: int, pool: Pool) -> None:
        """Run over the first `n_rows` rows."""
        if n_rows != self._n_rows:
            self._n_rows = None  # an interrupt on the way leaves it cut to no number of rows
            self._bound.cut(n_rows, self._form.shares(n_rows))
            self._n_rows = n_rows
        pool.walk(self._bound.table)
        if self._outputs:
            self._bound.copy(self._outputs)
