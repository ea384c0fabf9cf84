"""Cost of one head, row or column of a layer in operations, weights and bytes.

Derived from small partitions of the split itself, so that planner and program cannot disagree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any

from pliant.errors import InputError
from pliant.ir.partition import Mode, Partition, Share
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.stage_graphs import flops, weight_bytes
from pliant.plan.split.stages import stages

ITEMSIZE = 4


@dataclass(frozen=True, slots=True)
class AffineCost:
    """`fixed` if there is a share at all, plus `each` per head, row or column of it."""

    fixed: float
    each: float


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """A model at some number of rows: operations of one layer's stages, bytes of all layers' weights.

    `attend` and `mixed` (attend_mix) are per head, `rest` per row, `forward` per column; `reduce_kernels` are
    per row of one term, one for each sum; each further term adds `inner`. `ws_*` and `tiled_*` are weights,
    and `tile_weight` is one number of a tile. If `bits` (one per layer) is set, matrices are in codes: these
    are cut in whole groups, for which a device needs up to `spare` bytes more than its share.
    """

    n_layers: int
    n_heads: int
    n_columns: int
    n_forwards: int
    rows: int
    head_dim: int
    inner: int
    hidden: int
    attend: AffineCost
    mixed: AffineCost
    rest: AffineCost
    forward: AffineCost
    reduces: tuple[float, ...]
    ws_head: AffineCost
    ws_row: int
    tiled_head: AffineCost
    tiled_column: int
    tiled_row: int
    tile_weight: float = ITEMSIZE
    bits: tuple[int, ...] = ()
    spare: int = 0


@lru_cache(maxsize=64)
def layer_sizes(spec: EncoderSpec, tokens: int, bits: tuple[int, ...] = ()) -> LayerSizes:
    """Return the sizes of `spec` at `tokens` rows, in codes of these bits, if any.

    Raises InputError if the model does not support that many rows.
    """
    if not 1 <= tokens <= spec.max_rows:
        raise InputError(f"{tokens} rows cannot be run: this model reads 1 to {spec.max_rows}.")
    probe = _ShareProbe(spec, tokens, bits)
    found = LayerSizes(
        n_layers=spec.n_layers,
        n_heads=spec.n_heads,
        n_columns=spec.ffn,
        n_forwards=len(spec.template.feed_forwards),
        rows=tokens,
        head_dim=spec.head_dim,
        inner=spec.inner,
        hidden=spec.hidden,
        attend=_line([probe.flops("ws", "attend", heads=h) for h in (1, 2)], spec.n_heads),
        mixed=_line([probe.flops("1d", "attend_mix", heads=h) for h in (1, 2)], spec.n_heads),
        rest=AffineCost(0.0, probe.flops("ws", "rest", rows=1)),
        forward=_line([probe.flops("1d", "feed_forward.0", columns=c) for c in (1, 2)], spec.ffn),
        reduces=tuple(
            probe.flops("1d", kernel, rows=1) for kernel in reduce_kernels(len(spec.template.feed_forwards))
        ),
        ws_head=_line([probe.weights("ws", heads=h) for h in (1, 2)], spec.n_heads),
        ws_row=probe.weights("ws", rows=1),
        tiled_head=_line([probe.weights("1d", heads=h) for h in (1, 2)], spec.n_heads),
        tiled_column=probe.weights("1d", columns=1),
        tiled_row=probe.weights("1d", rows=1),
    )
    return replace(found, **_coded(spec, probe)) if bits else found


def _coded(spec: EncoderSpec, probe: "_ShareProbe") -> dict[str, Any]:
    """The fields that differ for codes: a head's and a column's share of whole groups, and spare bytes.

    These are lines through the origin; they underestimate the weights of some counts by at most `spare`.
    """
    heads = list(range(1, spec.n_heads + 1))
    columns = [c for c in (1, 15, 16, 17, 31, 32, 33, 48, 49, 65, spec.ffn) if c <= spec.ffn]
    found: dict[str, Any] = {}
    spare = 0
    cells: tuple[tuple[str, Mode, str, list[int]], ...] = (
        ("ws_head", "ws", "heads", heads),
        ("tiled_head", "1d", "heads", heads),
        ("tiled_column", "1d", "columns", columns),
    )
    for name, mode, what, counts in cells:
        taken = [probe.weights(mode, **{what: n}) for n in counts]
        each = taken[-1] / counts[-1]
        found[name] = ceil(each) if what == "columns" else AffineCost(0.0, each)
        above = max(n_bytes - each * n for n, n_bytes in zip(counts, taken, strict=True))
        spare = max(spare, ceil(above)) if mode == "ws" else spare + ceil(above)
    assert spec.coded is not None, spec
    mean_bits = sum(probe.bits) / len(probe.bits)
    tile_weight = mean_bits / 8 + 6 * spec.coded.outlier_share
    return found | {"bits": probe.bits, "tile_weight": tile_weight, "spare": spare}


def reduce_kernels(n_forwards: int) -> tuple[str, ...]:
    """Return the kernels of a 1D-tiled layer's sums: after attention, then after each feed forward."""
    return ("reduce", *(f"reduce.{f}" for f in range(n_forwards)))


@dataclass(frozen=True, slots=True)
class _ShareProbe:
    """A device "a" with a small share, beside "b" with everything else."""

    spec: EncoderSpec
    tokens: int
    bits: tuple[int, ...] = ()

    def flops(self, mode: Mode, kernel: str, heads: int = 0, rows: int = 0, columns: int = 0) -> float:
        partition = self._partition(mode, heads, rows, columns)
        for stage in stages(self.spec, partition, 0):
            if stage.device == "a" and stage.kernel == kernel:
                return float(flops(self.spec, partition, stage))
        raise AssertionError(f"{kernel} is not a stage of {partition}")

    def weights(self, mode: Mode, heads: int = 0, rows: int = 0, columns: int = 0) -> int:
        partition = replace(self._partition(mode, heads, rows, columns), bits=self.bits)
        return weight_bytes(self.spec, partition)["a"]

    def _partition(self, mode: Mode, heads: int, rows: int, columns: int) -> Partition:
        n_columns = 0 if mode == "ws" else self.spec.ffn
        heads, columns = min(heads, self.spec.n_heads), min(columns, n_columns)
        rest = Share("b", self.spec.n_heads - heads, self.tokens - rows, n_columns - columns)
        return Partition(mode, "b", (Share("a", heads, rows, columns), rest), self.tokens)


def _line(amounts: Sequence[float | int], most: int) -> AffineCost:
    """Return the line through the amounts for 1 and for 2; with only one head, through the origin."""
    one, two = amounts
    return AffineCost(0.0, float(one)) if most < 2 else AffineCost(float(2 * one - two), float(two - one))
