"""Memory for the tensors of a layer while it runs on a device.

If a port's regions lie next to each other in one tensor, the port is a block of rows of one array. Most
outputs and messages are therefore never copied. If a port reads other columns than this device produced,
the device's own share is copied once, before the stage.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import numpy as np

from pliant.ir.program import Exchange, TensorPart
from pliant.kernels.runtime.aligned_memory import aligned_floats
from pliant.plan.split.activation_bytes import BufferKey, buffer_boxes, buffer_key, is_layer_input
from pliant.plan.split.stage_graphs import StagePort, inputs, outputs
from pliant.plan.split.stages import DeviceStage


@dataclass(frozen=True, slots=True, eq=False)
class BufferCopy:
    """A copy before a stage: from `source` to `target`."""

    target: np.ndarray
    source: np.ndarray


@final
class Buffers:
    """Arrays for all ports of one device's stages; tensors `x.K` alternate between two arrays.

    `stages` are the device's own of two consecutive layers, an even one first.
    """

    def __init__(self, stages: Iterable[DeviceStage], tokens: int, hidden: int) -> None:
        self._x = tuple(aligned_floats(tokens, hidden) for _ in range(2))
        for x in self._x:
            x[...] = 0.0
        self._made: dict[str, tuple[BufferKey, TensorPart]] = {}
        self._read: dict[str, list[tuple[BufferKey, TensorPart]]] = {}
        stages = tuple(stages)
        self._boxes = buffer_boxes(stages)
        for stage in stages:
            for port in outputs(stage):
                self._made[port.regions[0].tensor] = buffer_key(stage, port), port.regions[0].part
            for port in inputs(stage):
                for region in port.regions:
                    self._read.setdefault(region.tensor, []).append((buffer_key(stage, port), region.part))
        self._arrays = {key: aligned_floats(box.n_rows, box.n_columns) for key, box in self._boxes.items()}

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All arrays, for memory accounting."""
        return (*self._x, *self._arrays.values())

    @property
    def n_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def x(self, layer: int) -> np.ndarray:
        """The input of `layer`, float32 [tokens, hidden], as a view."""
        return self._x[layer % 2]

    def port(self, stage: DeviceStage, port: StagePort) -> np.ndarray:
        """The array of a port: complete rows, so contiguous."""
        if is_layer_input(port.regions[0]):
            return _cut(self._x_of(port.regions[0].tensor), port.box, 0, 0)
        return self._view(buffer_key(stage, port), port.box)

    def copies_before(self, stage: DeviceStage) -> tuple[BufferCopy, ...]:
        """The copies of this device's own results that the stage needs first."""
        found = []
        for port in inputs(stage):
            for region in port.regions:
                if is_layer_input(region) or region.tensor not in self._made:
                    continue
                made, part = self._made[region.tensor]
                shared = part.shared(region.part)
                key = buffer_key(stage, port)
                if shared is not None and key != made:
                    found.append(BufferCopy(self._view(key, shared), self._view(made, shared)))
        return tuple(found)

    def outgoing(self, work: Exchange) -> np.ndarray:
        """The tensor that this device sends, as a view of its output."""
        assert work.part is not None, work
        if work.tensor.startswith("x."):
            return _cut(self._x_of(work.tensor), work.part, 0, 0)
        return self._view(self._made[work.tensor][0], work.part)

    def incoming(self, work: Exchange) -> np.ndarray:
        """The destination of a received tensor, as a view of the stage's input."""
        assert work.part is not None, work
        if work.tensor.startswith("x."):
            return _cut(self._x_of(work.tensor), work.part, 0, 0)
        for key, part in self._read[work.tensor]:
            if part.shared(work.part) == work.part:
                return self._view(key, work.part)
        raise AssertionError(f"no stage here reads '{work}'")

    def _x_of(self, tensor: str) -> np.ndarray:
        return self.x(int(tensor.removeprefix("x.")))

    def _view(self, key: BufferKey, part: TensorPart) -> np.ndarray:
        box = self._boxes[key]
        return _cut(self._arrays[key], part, box.first_row, box.first_column)


def _cut(array: np.ndarray, part: TensorPart, first_row: int, first_column: int) -> np.ndarray:
    rows = slice(part.rows.start - first_row, part.rows.stop - first_row)
    return array[rows, part.columns.start - first_column : part.columns.stop - first_column]
