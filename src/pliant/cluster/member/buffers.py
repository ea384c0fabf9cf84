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
from pliant.plan.split.stage_graphs import StagePort, inputs, outputs
from pliant.plan.split.stages import DeviceStage, TensorRegion


@dataclass(frozen=True, slots=True, eq=False)
class BufferCopy:
    """A copy before a stage: from `source` to `target`."""

    target: np.ndarray
    source: np.ndarray


@dataclass(frozen=True, slots=True)
class _Key:
    """Identifies an array: `columns` of a tensor or, if a port joins several tensors, of that `port`."""

    tensor: str
    columns: range
    port: str = ""


@final
class Buffers:
    """Arrays for all ports of one device's stages; tensors `x.K` alternate between two arrays.

    `stages` are the device's own of two consecutive layers, an even one first.
    """

    def __init__(self, stages: Iterable[DeviceStage], tokens: int, hidden: int) -> None:
        self._x = tuple(aligned_floats(tokens, hidden) for _ in range(2))
        for x in self._x:
            x[...] = 0.0
        self._boxes: dict[_Key, TensorPart] = {}
        self._made: dict[str, tuple[_Key, TensorPart]] = {}
        self._read: dict[str, list[tuple[_Key, TensorPart]]] = {}
        stages = tuple(stages)
        for stage in stages:
            for port in outputs(stage):
                self._note(stage, port)
                self._made[port.regions[0].tensor] = _key(stage, port), port.regions[0].part
        for stage in stages:
            for port in inputs(stage):
                self._note(stage, port)
                for region in port.regions:
                    self._read.setdefault(region.tensor, []).append((_key(stage, port), region.part))
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
        if _is_x(port.regions[0]):
            return _cut(self._x_of(port.regions[0].tensor), port.box, 0, 0)
        return self._view(_key(stage, port), port.box)

    def copies_before(self, stage: DeviceStage) -> tuple[BufferCopy, ...]:
        """The copies of this device's own results that the stage needs first."""
        found = []
        for port in inputs(stage):
            for region in port.regions:
                if _is_x(region) or region.tensor not in self._made:
                    continue
                made, part = self._made[region.tensor]
                shared = part.shared(region.part)
                key = _key(stage, port)
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

    def _note(self, stage: DeviceStage, port: StagePort) -> None:
        if _is_x(port.regions[0]):
            return
        key, box = _key(stage, port), port.box
        known = self._boxes.get(key, box)
        first = min(known.first_row, box.first_row)
        end = max(known.rows.stop, box.rows.stop)
        self._boxes[key] = TensorPart(first, end - first, box.first_column, box.n_columns)

    def _x_of(self, tensor: str) -> np.ndarray:
        return self.x(int(tensor.removeprefix("x.")))

    def _view(self, key: _Key, part: TensorPart) -> np.ndarray:
        box = self._boxes[key]
        return _cut(self._arrays[key], part, box.first_row, box.first_column)


def _key(stage: DeviceStage, port: StagePort) -> _Key:
    tensors = {region.tensor for region in port.regions}
    if len(tensors) == 1:
        return _Key(tensors.pop(), port.box.columns)
    return _Key(stage.kernel, port.box.columns, port.name)


def _is_x(region: TensorRegion) -> bool:
    return region.tensor.startswith("x.")


def _cut(array: np.ndarray, part: TensorPart, first_row: int, first_column: int) -> np.ndarray:
    rows = slice(part.rows.start - first_row, part.rows.stop - first_row)
    return array[rows, part.columns.start - first_column : part.columns.stop - first_column]
