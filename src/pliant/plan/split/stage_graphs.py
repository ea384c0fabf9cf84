"""The graph of each stage of a split layer, with its inputs and outputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import assert_never

from pliant.ir.partition import Partition
from pliant.ir.program import Compute, TensorPart
from pliant.models.encoder import encoder_parts as parts
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.models.encoder.part_builder import EncoderPart as GraphPart
from pliant.models.encoder.part_builder import IndexRange, WeightBlock
from pliant.plan.split.split_program import HEAD, INPUT
from pliant.plan.split.stages import DeviceStage, StageKind, TensorRegion, stages, tiles_of
from pliant.store.coding.matrix import coded_bytes, saves_bytes


@dataclass(frozen=True, slots=True)
class StagePort:
    """An input or output of a stage's graph, and the regions that it consists of."""

    name: str
    regions: tuple[TensorRegion, ...]

    @property
    def box(self) -> TensorPart:
        """The rectangle around all regions, which fill it."""
        rows = [end for r in self.regions for end in (r.part.rows.start, r.part.rows.stop)]
        columns = [end for r in self.regions for end in (r.part.columns.start, r.part.columns.stop)]
        return TensorPart(min(rows), max(rows) - min(rows), min(columns), max(columns) - min(columns))


def graph_part(spec: EncoderSpec, partition: Partition, stage: DeviceStage) -> GraphPart:
    """Return the stage's graph, the same for all layers."""
    if stage.kind in ("mix", "up", "down"):
        return _tile(spec, partition, stage)
    is_of_heads = stage.kind in ("attend", "attend_mix")
    cut = partition.heads(stage.device) if is_of_heads else partition.columns(stage.device)
    return part_of_kind(spec, stage.kind, stage.rows, stage.forward, cut, len(_stacks(stage)))


def part_of_kind(
    spec: EncoderSpec, kind: StageKind, rows: int, forward: int | None, cut: range, n_terms: int
) -> GraphPart:
    """Return the graph of a stage that is no tile: its heads or columns are `cut`, it sums `n_terms`."""
    match kind:
        case "attend":
            return parts.attention_part(spec, rows, _span(cut))
        case "rest":
            return parts.row_wise_part(spec, rows)
        case "attend_mix":
            return parts.attention_product_part(spec, rows, _span(cut))
        case "reduce":
            if forward is None:
                return parts.after_attention_part(spec, rows, n_terms)
            return parts.after_feed_forward_part(spec, rows, forward, n_terms)
        case "feed_forward":
            assert forward is not None, kind
            return parts.feed_forward_part(spec, rows, forward, _span(cut))
        case "activate":
            assert forward is not None, kind
            return parts.activation_part(spec, rows, forward, _span(cut), n_terms)
        case "mix" | "up" | "down":
            raise AssertionError(f"{kind} is a tile")
        case _:
            assert_never(kind)


def inputs(stage: DeviceStage) -> tuple[StagePort, ...]:
    """Return the tensors that the stage's graph reads."""
    found: dict[str, tuple[TensorRegion, ...]] = {}
    for region in stage.reads:
        if not _is_term(region):
            name = _input(stage, region.tensor)
            found[name] = (*found.get(name, ()), region)
    ports = [StagePort(name, regions) for name, regions in found.items()]
    ports += [StagePort(f"partial.{i}", regions) for i, regions in enumerate(_stacks(stage))]
    return tuple(ports)


def outputs(stage: DeviceStage) -> tuple[StagePort, ...]:
    """Return the tensors that the stage's graph writes."""
    return tuple(StagePort(_output(stage, region), (region,)) for region in stage.writes)


def weight_bytes(spec: EncoderSpec, *partitions: Partition) -> dict[str, int]:
    """Return the bytes of weights that each device needs for all layers; 0 without a share.

    Matrices are float32, or in codes if a partition has bits. For several partitions, a device holds the
    union of their needs, with shared blocks counted once.
    """
    held: dict[str, dict[tuple[int, ...], set[WeightBlock]]] = {}
    for partition in dict.fromkeys(map(_without_lengths, partitions)):  # many share their blocks
        for device, blocks in _blocks(spec, partition).items():
            held.setdefault(device, {}).setdefault(partition.bits, set()).update(blocks)
    share = 0.0 if spec.coded is None else spec.coded.outlier_share

    def total(by_bits: dict[tuple[int, ...], set[WeightBlock]]) -> int:
        layers = {
            (block, layer, bits)
            for of_layers, blocks in by_bits.items()
            for layer, bits in enumerate(of_layers or (None,) * spec.n_layers)
            for block in blocks
        }
        return sum(_block_bytes(block, bits, share) for block, _, bits in layers)

    return {device: total(by_bits) for device, by_bits in held.items()}


def flops(spec: EncoderSpec, partition: Partition, stage: DeviceStage) -> int:
    """Count two per multiply-add of the stage's products, and one per number that a sum reads.

    Norms, activations and softmax are not counted.
    """
    shapes = [piece.shape for piece in graph_part(spec, partition, stage).pieces.values()]
    count = sum(2 * stage.rows * prod(shape) for shape in shapes if len(shape) == 2)
    if stage.kind in ("reduce", "activate"):
        count += sum(region.part.size for region in stage.reads)
    if stage.kind in ("attend", "attend_mix"):
        assert stage.width is not None, stage
        count += 4 * stage.rows * partition.tokens * stage.width * spec.head_dim
    return count


def work_flops(spec: EncoderSpec, partition: Partition) -> Callable[[Compute], float]:
    """Return the operations of every step of a split program, as a function for a cost."""
    known = {(s.device, s.kernel): float(flops(spec, partition, s)) for s in stages(spec, partition, 0)}
    known |= {(partition.primary, kernel): end_flops(spec, partition.tokens) for kernel in (INPUT, HEAD)}
    return lambda work: known.get((work.device, work.kernel), 0.0)


def end_flops(spec: EncoderSpec, tokens: int) -> float:
    """Return the operations of the input, or of the head: by convention one per number of a layer's state."""
    return float(tokens * spec.hidden)


@lru_cache(maxsize=256)
def _without_lengths(partition: Partition) -> Partition:
    """Return the same weights on every device, with the minimum number of rows."""
    shares = tuple(replace(share, rows=min(share.rows, 1)) for share in partition.shares)
    return replace(partition, shares=shares, tokens=sum(share.rows for share in shares))


@lru_cache(maxsize=64)
def _blocks(spec: EncoderSpec, partition: Partition) -> Mapping[str, set[WeightBlock]]:
    held: dict[str, set[WeightBlock]] = {device: set() for device in partition.devices}
    alike: dict[str, set[WeightBlock]] = {}
    for stage in stages(spec, partition, 0):
        is_alike = stage.kind in ("rest", "reduce")  # the same on every device
        found = alike.get(stage.kernel) if is_alike else None
        if found is None:
            pieces = graph_part(spec, partition, stage).pieces.values()
            found = alike[stage.kernel] = {block for piece in pieces for block in piece.blocks}
        held[stage.device] |= found
    return held


def _tile(spec: EncoderSpec, p: Partition, stage: DeviceStage) -> GraphPart:
    assert p.grid is not None, stage
    tile = tiles_of(p, p.grid)[stage.device]
    if stage.kind == "mix":
        d, outputs = spec.head_dim, _span(tile.outputs)
        columns = IndexRange(tile.heads.start * d, tile.heads.stop * d)
        return parts.tile_part(spec.template.output, stage.rows, columns, outputs)
    assert stage.forward is not None, stage
    used, hidden, neurons = (
        spec.template.feed_forwards[stage.forward],
        _span(tile.hidden),
        _span(tile.neurons),
    )
    if stage.kind == "up":
        return parts.tile_part(used.up, stage.rows, hidden, neurons)
    return parts.tile_part(used.down, stage.rows, neurons, hidden)


def _stacks(stage: DeviceStage) -> list[tuple[TensorRegion, ...]]:
    """Return the terms of the stage's sum: adjacent blocks of columns form one term."""
    met: dict[range, int] = {}
    stacks: list[tuple[TensorRegion, ...]] = []
    for region in filter(_is_term, stage.reads):
        at = met.get(region.part.columns, 0)
        met[region.part.columns] = at + 1
        stacks += [()] if at == len(stacks) else []
        stacks[at] += (region,)
    return stacks


def _is_term(region: TensorRegion) -> bool:
    return "@" in region.tensor


def _input(stage: DeviceStage, tensor: str) -> str:
    """Return the name of a tensor in the stage's graph."""
    if tensor.startswith("x."):
        return "x"
    if stage.kind in ("mix", "up", "down"):
        return "tile_in"
    return "y" if stage.kind == "reduce" else tensor.partition(".")[0]


def _output(stage: DeviceStage, region: TensorRegion) -> str:
    if _is_term(region):
        return "partial"
    names = {"x": "out", "kept": "y", "act": "activated"}
    stem = region.tensor.partition(".")[0]
    return names.get(stem, stem)


def _span(numbers: range) -> IndexRange:
    return IndexRange(numbers.start, numbers.stop)


@lru_cache(maxsize=4096)
def _block_bytes(block: WeightBlock, bits: int | None, outlier_share: float) -> int:
    """Return the bytes of a block of a weight; blocks that a product lacks have no name and count as 0."""
    if block.name is None:
        return 0
    if block.columns is None:
        return 4 * block.rows.n
    shape = block.columns.n, block.rows.n
    if bits is None or not saves_bytes(*shape, bits):
        return 4 * prod(shape)
    return coded_bytes(*shape, bits, outlier_share)
