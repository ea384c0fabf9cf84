"""The memory of a partition on each device: its weights, and the tensors that live while a layer runs.

The sizes of tensors inside stages are those of the stages' own images, so that planner and device cannot
disagree. Memory for the input and the head, on the primary, comes in addition.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.fragment import fragment_image
from pliant.compiler.executable.place_tensors import Lifetime, place_tensors
from pliant.ir.graph import Graph
from pliant.ir.partition import Partition, Share
from pliant.ir.program import TensorPart
from pliant.kernels.attention.attention_texts import BLOCK_WORDS
from pliant.kernels.emit.isa import X86_64
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.stage_graphs import StagePort, inputs, outputs, part_of_kind, weight_bytes
from pliant.plan.split.stages import DeviceStage, StageKind, TensorRegion, stages

_ITEMSIZE = 4
_BLOCK_BYTES = 8 * BLOCK_WORDS
"""Bytes per row that tell attention which rows are those of one text."""
_ROWS = 64
"""Rows of the images whose tensors are scaled, with gaps between rows that fewer rows may not have."""
_ONE_CALL: Collection[StageKind] = ("mix", "up", "activate", "down")
"""Stages of one kernel call, with no tensor inside."""


@dataclass(frozen=True, slots=True)
class BufferKey:
    """Identifies an array: `columns` of a tensor or, if a port joins several tensors, of that `port`."""

    tensor: str
    columns: range
    port: str = ""


def buffer_key(stage: DeviceStage, port: StagePort) -> BufferKey:
    """Return the key of the array of a port that is no part of a layer's input."""
    tensors = {region.tensor for region in port.regions}
    if len(tensors) == 1:
        return BufferKey(tensors.pop(), port.box.columns)
    return BufferKey(stage.kernel, port.box.columns, port.name)


def is_layer_input(region: TensorRegion) -> bool:
    """Return whether a region is of `x.K`, for which all layers of a device share two arrays."""
    return region.tensor.startswith("x.")


def buffer_boxes(stages: Iterable[DeviceStage]) -> dict[BufferKey, TensorPart]:
    """Return the part of each tensor that a device of these stages keeps an array for, except `x.K`.

    `stages` are one device's own of two consecutive layers, an even one first.
    """
    boxes: dict[BufferKey, TensorPart] = {}
    for stage in stages:
        for port in (*outputs(stage), *inputs(stage)):
            if is_layer_input(port.regions[0]):
                continue
            key, box = buffer_key(stage, port), port.box
            known = boxes.get(key, box)
            first = min(known.first_row, box.first_row)
            end = max(known.rows.stop, box.rows.stop)
            boxes[key] = TensorPart(first, end - first, box.first_column, box.n_columns)
    return boxes


@lru_cache(maxsize=1024)
def activation_bytes(spec: EncoderSpec, partition: Partition) -> Mapping[str, int]:
    """Return the bytes of each device's activations: between the stages of layers, and inside of them.

    They include where the texts of a batch begin. That is what a device allocates, apart from the input and
    the head; with less than 4 rows up to 64 bytes a row more. 0 for a device that takes no part.
    """
    own: dict[str, list[DeviceStage]] = {device: [] for device in partition.devices}
    for layer in range(2):
        for stage in stages(spec, partition, layer):
            own[stage.device].append(stage)
    found = {}
    for device, mine in own.items():
        is_used = bool(mine) or device in (*partition.participants, partition.primary)
        between = 2 * partition.tokens * spec.hidden if is_used else 0
        between += sum(box.size for box in buffer_boxes(mine).values())
        inside = max((_inside_bytes(spec, stage) for stage in mine[: len(mine) // 2]), default=0)
        blocks = _BLOCK_BYTES * partition.tokens if is_used else 0
        found[device] = _ITEMSIZE * between + inside + blocks
    return found


def memory_bytes(spec: EncoderSpec, *partitions: Partition) -> dict[str, int]:
    """Return the bytes that each device needs for plans held together: weights, and activations of each.

    Weights are those of `weight_bytes`: plans share them, but no activations.
    """
    need = Counter(weight_bytes(spec, *partitions))
    for partition in dict.fromkeys(partitions):
        need.update(activation_bytes(spec, partition))
    return dict(need)


def whole_memory_bytes(spec: EncoderSpec, tokens: int) -> int:
    """Return the bytes of the whole model, in float32, for `tokens` rows on one device."""
    alone = Partition("ws", "p", (Share("p", spec.n_heads, tokens),), tokens)
    return memory_bytes(spec, alone)["p"]


def _inside_bytes(spec: EncoderSpec, stage: DeviceStage) -> int:
    """Return the bytes of the tensors inside a stage that live at the same time."""
    if stage.kind in _ONE_CALL:
        return 0
    n_terms = sum(port.name.startswith("partial.") for port in inputs(stage))
    tensors = _image_tensors(spec, stage.kind, stage.forward, stage.width or 0, n_terms)
    sized = [replace(one, n_bytes=one.n_bytes * stage.rows // _ROWS) for one in tensors]
    return place_tensors(sized).n_bytes


@lru_cache(maxsize=4096)
def _image_tensors(
    spec: EncoderSpec, kind: StageKind, forward: int | None, width: int, n_terms: int
) -> tuple[Lifetime, ...]:
    """Return the tensors inside a stage of `_ROWS` rows."""
    part = part_of_kind(spec, kind, _ROWS, forward, range(width), n_terms)
    blanks = {name: np.broadcast_to(np.zeros((), np.float32), x.shape) for name, x in part.pieces.items()}
    constants = {**part.constants, **blanks}
    graph = Graph(part.nodes, part.inputs, part.outputs, part.types, constants, part.name)
    return fragment_image(graph, Target(X86_64, 1)).tensors
