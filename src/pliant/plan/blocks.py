"""Which weights each stage of a split layer reads, and how many bytes that is. Knows names, no array."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from pliant.ir.partition import Partition
from pliant.models.encoder_spec import EncoderLayer, EncoderSpec, FeedForward, Linear, Narrowing, Norm
from pliant.plan.stages import Stage, stages, tiles_of

ITEMSIZE = 4


@dataclass(frozen=True, slots=True)
class Block:
    """Rows (outputs) and columns (inputs) of a weight by its canonical name; a vector has no columns."""

    name: str
    rows: range
    columns: range | None = None

    @property
    def size(self) -> int:
        """Of elements."""
        return len(self.rows) * (1 if self.columns is None else len(self.columns))


def blocks(spec: EncoderSpec, partition: Partition, stage: Stage, layer: int) -> tuple[Block, ...]:
    """The weights of one stage, each once."""
    found = _blocks(spec, partition, stage, spec.layer(layer))
    return tuple(dict.fromkeys(found))


def weight_bytes(spec: EncoderSpec, partition: Partition) -> dict[str, int]:
    """Bytes of float32 weights that each device needs for all layers; 0 where it takes no part."""
    held: dict[str, set[Block]] = {device: set() for device in partition.devices}
    for stage in stages(spec, partition, 0):
        held[stage.device].update(blocks(spec, partition, stage, 0))
    each = {device: sum(block.size for block in found) for device, found in held.items()}
    return {device: spec.n_layers * ITEMSIZE * n for device, n in each.items()}


def flops(spec: EncoderSpec, partition: Partition, stage: Stage) -> int:
    """Two for each multiply-add of the stage's products, one for each number that a sum reads.

    Norms, activations and softmax are not counted.
    """
    products = [b for b in blocks(spec, partition, stage, 0) if b.columns is not None]
    count = 2 * stage.rows * sum(block.size for block in products)
    if stage.kind in ("reduce", "activate"):
        count += sum(region.part.size for region in stage.reads)
    if stage.kind in ("attend", "attend_mix"):
        assert stage.width is not None, stage
        count += 4 * stage.rows * partition.tokens * stage.width * spec.head_dim
    return count


def _blocks(spec: EncoderSpec, p: Partition, stage: Stage, layer: EncoderLayer) -> Iterator[Block]:
    heads = p.heads(stage.device)
    own = range(heads.start * spec.head_dim, heads.stop * spec.head_dim)
    match stage.kind:
        case "attend":
            yield from _attend(layer, own)
        case "attend_mix":
            yield from _attend(layer, own)
            yield Block(f"{layer.output.name}.weight", range(layer.output.n_out), own)
        case "rest":
            yield from _linear(layer.output)
            yield from _reduce(layer, None)
            for f, forward in enumerate(layer.feed_forwards):
                yield from _neurons(forward, range(forward.up.n_out))
                yield from _reduce(layer, f)
        case "reduce":
            yield from _reduce(layer, stage.forward)
        case "feed_forward":
            yield from _neurons(_forward(layer, stage), p.columns(stage.device))
        case "activate":
            yield from _bias(_forward(layer, stage).up, p.columns(stage.device))
        case "mix" | "up" | "down":
            yield _tile(layer, p, stage, spec.head_dim)
        case _:
            assert_never(stage.kind)


def _attend(layer: EncoderLayer, own: range) -> Iterator[Block]:
    if layer.is_pre_norm:
        yield from _norm(layer.attention_norm)
    yield from _narrowing(layer.query_in)
    yield from _narrowing(layer.value_in)
    for linear in (layer.query, layer.key, layer.value):
        yield Block(f"{linear.name}.weight", own, range(linear.n_in))
        yield from _bias(linear, own)


def _reduce(layer: EncoderLayer, forward: int | None) -> Iterator[Block]:
    """After a sum: its bias, the norm that stands there, and what makes the residual or the way out."""
    summed = layer.output if forward is None else layer.feed_forwards[forward].down
    yield from _bias(summed, range(summed.n_out))
    if forward is None:
        yield from _narrowing(layer.residual_in)
    here = layer.attention_norm if forward is None else layer.feed_forwards[forward].norm
    following = layer.feed_forwards[0 if forward is None else forward + 1 :][:1]
    if not layer.is_pre_norm:
        yield from _norm(here)
    elif following:
        yield from _norm(following[0].norm)
    if not following:
        yield from _narrowing(layer.widen)


def _neurons(forward: FeedForward, own: range) -> Iterator[Block]:
    yield Block(f"{forward.up.name}.weight", own, range(forward.up.n_in))
    yield from _bias(forward.up, own)
    yield Block(f"{forward.down.name}.weight", range(forward.down.n_out), own)


def _tile(layer: EncoderLayer, p: Partition, stage: Stage, head_dim: int) -> Block:
    assert p.grid is not None, stage
    tile = tiles_of(p, p.grid)[stage.device]
    if stage.kind == "mix":
        columns = range(tile.heads.start * head_dim, tile.heads.stop * head_dim)
        return Block(f"{layer.output.name}.weight", tile.outputs, columns)
    forward = _forward(layer, stage)
    if stage.kind == "up":
        return Block(f"{forward.up.name}.weight", tile.neurons, tile.hidden)
    return Block(f"{forward.down.name}.weight", tile.hidden, tile.neurons)


def _forward(layer: EncoderLayer, stage: Stage) -> FeedForward:
    assert stage.forward is not None, stage
    return layer.feed_forwards[stage.forward]


def _linear(linear: Linear) -> Iterator[Block]:
    """The weight whole, without its bias."""
    yield Block(f"{linear.name}.weight", range(linear.n_out), range(linear.n_in))


def _bias(linear: Linear, own: range) -> Iterator[Block]:
    if linear.has_bias:
        yield Block(f"{linear.name}.bias", own)


def _norm(norm: Norm) -> Iterator[Block]:
    yield Block(f"{norm.name}.weight", range(norm.n))
    yield Block(f"{norm.name}.bias", range(norm.n))


def _narrowing(narrowing: Narrowing | None) -> Iterator[Block]:
    if narrowing is not None:
        yield from _linear(narrowing.linear)
        yield from _bias(narrowing.linear, range(narrowing.linear.n_out))
        yield from _norm(narrowing.norm)
