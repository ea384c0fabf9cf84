"""Each device's computation in one layer, for each of Hepti's modes.

Tensors of a layer, all float32 [tokens, columns]: `x.K` enters layer K and leaves layer K - 1; `attended` is
the heads' output; `mixed@D` is device D's partial sum of the attention's output product; `h.F` is the input
of feed forward F, `kept.F` its residual if that differs (pre-norm); `up.F@D`, `act.F` and `down.F@D` are
internal to it. A tensor `NAME@D` is a term of a sum; any other holds final numbers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

from pliant.errors import InputError
from pliant.ir.partition import DeviceGrid, Partition
from pliant.ir.program import TensorPart, part_of
from pliant.models.encoder.encoder_spec import EncoderSpec

StageKind = Literal["attend", "rest", "attend_mix", "mix", "reduce", "feed_forward", "up", "activate", "down"]
"""attend: norms and products before the heads, and own heads. rest: own rows, to the layer's end.
attend_mix: attend, then the rows of the output product that belong to own heads. mix: a tile of it.
reduce: sum of partial sums over own rows, bias, residual, norm. feed_forward: own neurons, up and down.
up, down: a tile of either. activate: sum over own neurons, bias, activation."""


@dataclass(frozen=True, slots=True)
class TensorRegion:
    """A rectangle of a named tensor."""

    tensor: str
    part: TensorPart


@dataclass(frozen=True, slots=True)
class DeviceStage:
    """One device's uninterrupted work: it starts when the device holds all regions that it `reads`.

    `forward` numbers the feed forward that the stage belongs to; None before the first. `rows` is the number
    of rows, `width` the number of heads or columns if the stage is cut along them.
    """

    kind: StageKind
    device: str
    rows: int
    reads: tuple[TensorRegion, ...]
    writes: tuple[TensorRegion, ...]
    forward: int | None = None
    width: int | None = None

    @property
    def kernel(self) -> str:
        """The kernel's name in its step."""
        return self.kind if self.forward is None else f"{self.kind}.{self.forward}"


def check(spec: EncoderSpec, partition: Partition) -> None:
    """Raise InputError if the shares do not add up to the model's sizes."""
    if partition.n_heads != spec.n_heads:
        raise InputError(f"shares of {partition.n_heads} heads do not make the model's {spec.n_heads}.")
    if partition.mode != "ws" and partition.n_columns != spec.ffn:
        raise InputError(f"shares of {partition.n_columns} columns do not make the model's {spec.ffn}.")
    if partition.tokens > spec.max_rows:
        raise InputError(f"{partition.tokens} rows are too many for this model: it reads {spec.max_rows}.")
    if partition.grid is not None and sum(partition.grid.hidden) != spec.inner:
        raise InputError(f"blocks of {partition.grid.hidden} columns do not make the model's {spec.inner}.")


def stages(spec: EncoderSpec, partition: Partition, layer: int) -> tuple[DeviceStage, ...]:
    """Return all devices' stages of `layer`, in data-flow order. Raises InputError: see `check`."""
    check(spec, partition)
    layout = _Layout(spec, partition, layer)
    match partition.mode:
        case "ws":
            return tuple(_weight_stationary(layout))
        case "1d":
            return tuple(_tiled_1d(layout))
        case "2d":
            return tuple(_tiled_2d(layout))
        case _:
            assert_never(partition.mode)


def input_part(spec: EncoderSpec, partition: Partition, device: str) -> TensorPart | None:
    """Return the part of a layer's input that `device` needs: all for heads or the primary, else its rows."""
    if partition.share(device).heads or device == partition.primary:
        return TensorPart(0, partition.tokens, 0, spec.hidden)
    return part_of(partition.rows(device), range(spec.hidden))


@dataclass(frozen=True, slots=True)
class _Layout:
    """The regions of one layer under one partition."""

    spec: EncoderSpec
    partition: Partition
    layer: int

    @property
    def n_forwards(self) -> int:
        return len(self.spec.template.feed_forwards)

    def all_rows(self, tensor: str, columns: range) -> tuple[TensorRegion, ...]:
        return _region(tensor, range(self.partition.tokens), columns)

    def own_rows(self, device: str, tensor: str, columns: range) -> tuple[TensorRegion, ...]:
        return _region(tensor, self.partition.rows(device), columns)

    def x(self, device: str) -> tuple[TensorRegion, ...]:
        """Return the device's own rows of the layer's input."""
        return self.own_rows(device, f"x.{self.layer}", range(self.spec.hidden))

    def attended(self, heads: range) -> range:
        """Return the columns of `heads`."""
        return range(heads.start * self.spec.head_dim, heads.stop * self.spec.head_dim)

    def attend(self, device: str) -> Iterator[DeviceStage]:
        """Yield the stage of one device's heads, if it has any."""
        heads = self.partition.heads(device)
        if heads:
            x = self.all_rows(f"x.{self.layer}", range(self.spec.hidden))
            y = self.all_rows("attended", self.attended(heads))
            yield DeviceStage("attend", device, self.partition.tokens, x, y, width=len(heads))

    def reduce(self, forward: int | None, blocks: dict[str, range]) -> Iterator[DeviceStage]:
        """Yield the sums of all owners of rows: `blocks` are the columns of each device's partial sum."""
        term = "mixed" if forward is None else f"down.{forward}"
        inner, is_pre_norm = range(self.spec.inner), self.spec.template.is_pre_norm
        following = 0 if forward is None else forward + 1
        for device in self.partition.participants:
            rows = self.partition.rows(device)
            if not rows:
                continue
            reads = _joined(_region(f"{term}@{d}", rows, block) for d, block in blocks.items())
            if forward is None:
                reads += self.x(device)
            else:
                kept = f"kept.{forward}" if is_pre_norm else f"h.{forward}"
                reads += self.own_rows(device, kept, inner)
            if following < self.n_forwards:
                writes = self.own_rows(device, f"h.{following}", inner)
                if is_pre_norm:
                    writes += self.own_rows(device, f"kept.{following}", inner)
            else:
                reads += self.x(device) if self.spec.template.widen is not None else ()
                writes = self.own_rows(device, f"x.{self.layer + 1}", range(self.spec.hidden))
            yield DeviceStage("reduce", device, len(rows), reads, writes, forward)


def _weight_stationary(at: _Layout) -> Iterator[DeviceStage]:
    """Yield stages with heads by columns, then everything else by rows (Figure 5 a)."""
    for device in at.partition.participants:
        yield from at.attend(device)
    for device in at.partition.participants:
        n = len(at.partition.rows(device))
        if n:
            reads = at.x(device) + at.own_rows(device, "attended", range(at.spec.attended))
            writes = at.own_rows(device, f"x.{at.layer + 1}", range(at.spec.hidden))
            yield DeviceStage("rest", device, n, reads, writes)


def _tiled_1d(at: _Layout) -> Iterator[DeviceStage]:
    """Yield heads, then neurons, by columns and rows of the weights; partial sums in between (Figure 5 b).

    The norm runs between reduce-scatter and all-gather, on the rows of each device: the traffic equals the
    all-reduce's, and no norm is computed twice.
    """
    p, inner, tokens = at.partition, range(at.spec.inner), at.partition.tokens
    headed = [d for d in p.participants if p.heads(d)]
    for d in headed:
        (attend,) = at.attend(d)
        mixed = at.all_rows(f"mixed@{d}", inner)
        yield DeviceStage("attend_mix", d, tokens, attend.reads, mixed, width=attend.width)
    yield from at.reduce(None, dict.fromkeys(headed, inner))
    cut = [d for d in p.participants if p.columns(d)]
    for f in range(at.n_forwards):
        for d in cut:
            reads, writes = at.all_rows(f"h.{f}", inner), at.all_rows(f"down.{f}@{d}", inner)
            yield DeviceStage("feed_forward", d, tokens, reads, writes, f, len(p.columns(d)))
        yield from at.reduce(f, dict.fromkeys(cut, inner))


def _tiled_2d(at: _Layout) -> Iterator[DeviceStage]:
    """Yield stages with weights cut both ways, over a grid (Figure 5 c; Pope et al. 2023, 3.2.2)."""
    p = at.partition
    assert p.grid is not None, p.mode
    tiles = tiles_of(p, p.grid)
    for d in p.participants:
        yield from at.attend(d)
    mixing = {d: t.outputs for d, t in tiles.items() if t.heads and t.outputs}
    for d, outputs in mixing.items():
        reads = at.all_rows("attended", at.attended(tiles[d].heads))
        writes = at.all_rows(f"mixed@{d}", outputs)
        yield DeviceStage("mix", d, p.tokens, reads, writes, width=len(outputs))
    yield from at.reduce(None, mixing)
    cut = {d: t for d, t in tiles.items() if t.hidden and t.neurons}
    for f in range(at.n_forwards):
        for d, t in cut.items():
            reads, writes = at.all_rows(f"h.{f}", t.hidden), at.all_rows(f"up.{f}@{d}", t.neurons)
            yield DeviceStage("up", d, p.tokens, reads, writes, f, len(t.neurons))
        for d in p.participants:
            own = p.columns(d)
            terms = [d for d in tiles[d].column if d in cut]
            if own:
                reads = _joined(at.all_rows(f"up.{f}@{other}", own) for other in terms)
                yield DeviceStage("activate", d, p.tokens, reads, at.all_rows(f"act.{f}", own), f, len(own))
        for d, t in cut.items():
            reads = at.all_rows(f"act.{f}", t.neurons)
            yield DeviceStage(
                "down", d, p.tokens, reads, at.all_rows(f"down.{f}@{d}", t.hidden), f, len(t.hidden)
            )
        yield from at.reduce(f, {d: t.hidden for d, t in cut.items()})


@dataclass(frozen=True, slots=True)
class Tile:
    """One device's position in the grid: the devices of its column, and its blocks of the weights.

    Of the output product: rows of all `heads` of the group, columns `outputs`. Of the feed forward: rows (up)
    and columns (down) `hidden`, and all `neurons` of the column.
    """

    column: tuple[str, ...]
    heads: range
    outputs: range
    hidden: range
    neurons: range


def tiles_of(partition: Partition, grid: DeviceGrid) -> dict[str, Tile]:
    """Return the tile of every device of the grid."""
    tiles = {}
    for g, group in enumerate(grid.groups):
        for c, device in enumerate(group):
            column = grid.columns[c]
            tiles[device] = Tile(
                column=column,
                heads=range(partition.heads(group[0]).start, partition.heads(group[-1]).stop),
                outputs=_block(grid.outputs, c),
                hidden=_block(grid.hidden, g),
                neurons=range(partition.columns(column[0]).start, partition.columns(column[-1]).stop),
            )
    return tiles


def _block(counts: tuple[int, ...], i: int) -> range:
    return range(sum(counts[:i]), sum(counts[: i + 1]))


def _joined(parts: Iterable[tuple[TensorRegion, ...]]) -> tuple[TensorRegion, ...]:
    return tuple(region for part in parts for region in part)


def _region(tensor: str, rows: range, columns: range) -> tuple[TensorRegion, ...]:
    """Return one region, or none if it is empty."""
    part = part_of(rows, columns)
    return () if part is None else (TensorRegion(tensor, part),)
