"""What one head, row or column of a layer costs in operations, weights and bytes.

Read off small partitions of the split itself, so that planner and program cannot disagree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pliant.errors import InputError
from pliant.ir.partition import Mode, Partition, Share
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.stage_graphs import flops, weight_bytes
from pliant.plan.split.stages import stages

ITEMSIZE = 4


@dataclass(frozen=True, slots=True)
class Amount:
    """`fixed` where there is a share at all, and `each` per head, row or column of it."""

    fixed: float
    each: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model at some number of rows: operations of one layer's stages, bytes of all layers' weights.

    `attend` and `mixed` (attend_mix) are per head, `rest` per row, `forward` per column; `reduces` are per
    row of one term, one for each sum; each further term adds `inner`. `ws_*` and `tiled_*` are weights.
    """

    n_layers: int
    n_heads: int
    n_columns: int
    n_forwards: int
    rows: int
    head_dim: int
    inner: int
    hidden: int
    attend: Amount
    mixed: Amount
    rest: Amount
    forward: Amount
    reduces: tuple[float, ...]
    ws_head: Amount
    ws_row: int
    tiled_head: Amount
    tiled_column: int
    tiled_row: int


@lru_cache(maxsize=64)
def sizes(spec: EncoderSpec, tokens: int) -> Sizes:
    """Of `spec` at `tokens` rows. Raises InputError where the model does not read as many."""
    if not 1 <= tokens <= spec.max_rows:
        raise InputError(f"{tokens} rows cannot be run: this model reads 1 to {spec.max_rows}.")
    probe = _Probe(spec, tokens)
    return Sizes(
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
        rest=Amount(0.0, probe.flops("ws", "rest", rows=1)),
        forward=_line([probe.flops("1d", "feed_forward.0", columns=c) for c in (1, 2)], spec.ffn),
        reduces=tuple(
            probe.flops("1d", kernel, rows=1) for kernel in reduces(len(spec.template.feed_forwards))
        ),
        ws_head=_line([probe.weights("ws", heads=h) for h in (1, 2)], spec.n_heads),
        ws_row=probe.weights("ws", rows=1),
        tiled_head=_line([probe.weights("1d", heads=h) for h in (1, 2)], spec.n_heads),
        tiled_column=probe.weights("1d", columns=1),
        tiled_row=probe.weights("1d", rows=1),
    )


def reduces(n_forwards: int) -> tuple[str, ...]:
    """The kernels of a 1D-tiled layer's sums: after attention, then after each feed forward."""
    return ("reduce", *(f"reduce.{f}" for f in range(n_forwards)))


@dataclass(frozen=True, slots=True)
class _Probe:
    """A device "a" with a small share, beside "b" with everything else."""

    spec: EncoderSpec
    tokens: int

    def flops(self, mode: Mode, kernel: str, heads: int = 0, rows: int = 0, columns: int = 0) -> float:
        partition = self._partition(mode, heads, rows, columns)
        for stage in stages(self.spec, partition, 0):
            if stage.device == "a" and stage.kernel == kernel:
                return float(flops(self.spec, partition, stage))
        raise AssertionError(f"{kernel} is no stage of {partition}")

    def weights(self, mode: Mode, heads: int = 0, rows: int = 0, columns: int = 0) -> int:
        return weight_bytes(self.spec, self._partition(mode, heads, rows, columns))["a"]

    def _partition(self, mode: Mode, heads: int, rows: int, columns: int) -> Partition:
        n_columns = 0 if mode == "ws" else self.spec.ffn
        heads, columns = min(heads, self.spec.n_heads), min(columns, n_columns)
        rest = Share("b", self.spec.n_heads - heads, self.tokens - rows, n_columns - columns)
        return Partition(mode, "b", (Share("a", heads, rows, columns), rest), self.tokens)


def _line(amounts: Sequence[float | int], most: int) -> Amount:
    """Through the amounts for 1 and for 2; with no second head there is nothing to tell them apart."""
    one, two = amounts
    return Amount(0.0, float(one)) if most < 2 else Amount(float(2 * one - two), float(two - one))
