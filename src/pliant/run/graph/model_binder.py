"""Bind an ONNX model to the shapes of the feeds, and to the values that shapes depend on."""

from functools import partial
from typing import final

import numpy as np

from pliant.compiler.rules.rules import RULES
from pliant.errors import MissingValueError, ShapeError
from pliant.models.onnx.bind.onnx_bind import bind_first
from pliant.models.onnx.bind.onnx_blocks import BoundPart, PartRebinder
from pliant.models.onnx.onnx_file import OnnxModel
from pliant.profile.system_memory import machine_bytes
from pliant.run.batches.buckets import Buckets
from pliant.run.graph.array_stage import AllTensors
from pliant.run.graph.size_limit import find_size_limit
from pliant.run.session.ports import Shapes

BindingKey = tuple[frozenset[tuple[str, tuple[int, ...]]], tuple[bytes, ...]]


@final
class ModelBinder:
    """Binds `model`. `by_value` names the inputs found so far whose values determine shapes."""

    def __init__(self, model: OnnxModel, buckets: Buckets) -> None:
        self.by_value: tuple[str, ...] = ()
        self._model, self._buckets = model, buckets
        self._size_limits: dict[str, int] = {}
        self._open = PartRebinder()

    def key(self, shapes: Shapes, feeds: AllTensors) -> BindingKey:
        """A key that is equal for feeds with the same binding."""
        return frozenset(shapes.items()), tuple(feeds[x].tobytes() for x in self.by_value)

    def bind(self, shapes: Shapes, feeds: AllTensors) -> BoundPart:
        """The part of the model that can be bound for these shapes, before any pass.

        Raises ShapeError naming the dimension, its size and the limit where the model takes no such size.
        """
        try:
            return self._bind_part(shapes, feeds)
        except ShapeError as error:
            limit = find_size_limit(
                self._model.inputs,
                shapes,
                partial(self._fits, feeds=feeds),
                tuple(self._size_limits.values()),
            )
            if limit is None:
                raise
            self._size_limits[limit.name] = limit.limit
            raise limit.error(error, self._buckets.sizes) from error

    def bind_first(self, shapes: Shapes) -> BoundPart:
        """The part that can be bound for these shapes and for other sizes as well. Raises GraphError as
        `bind_first`.
        """
        return self._open.bind_part(lambda keeps: self._bind_part(shapes, {}, keeps_lookups=keeps))

    def _fits(self, shapes: Shapes, feeds: AllTensors) -> bool:
        """Whether the model binds to these shapes, with the values of `feeds` for inputs bound by value."""
        try:
            self._bind_part(shapes, {x: a for x, a in feeds.items() if x in shapes and a.shape == shapes[x]})
        except (ShapeError, MissingValueError):
            return False
        return True

    def _bind_part(self, shapes: Shapes, feeds: AllTensors, *, keeps_lookups: bool = False) -> BoundPart:
        """The part that can be bound for these shapes; inputs that determine shapes are found while
        binding.
        """
        memory = machine_bytes()
        while True:
            values = {x: np.array(feeds[x]) for x in self.by_value if x in feeds}
            try:
                return bind_first(
                    self._model,
                    {},
                    values,
                    supported=RULES,
                    shapes=shapes,
                    max_bytes=memory,
                    keeps_lookups=keeps_lookups,
                )
            except MissingValueError as needed:
                if needed.names <= set(self.by_value) or not needed.names <= set(feeds):
                    raise
                self.by_value = tuple(sorted({*self.by_value, *needed.names}))
