"""Weights of the stages: every number of a layer is somewhere, and the paper's operations are counted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.ir.partition import Mode, Partition, Share
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.stage_graphs import flops, graph_part, weight_bytes
from pliant.plan.split.stages import stages
from tests.plan.splits import MODES, bert, mobilebert, partition, problem


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_together_the_devices_hold_every_weight(seed: int) -> None:
    """A weight that no stage reads would be left out of the model; matrices of tiles must not overlap."""
    spec, p = problem(seed)
    layer = spec.layer(1)
    counts = {name: np.zeros(shape, int) for name, shape in layer.tensors}
    for stage in stages(spec, p, 1):
        for piece in graph_part(spec, p, stage).pieces.values():
            for block in piece.blocks:
                columns = () if block.columns is None else (slice(block.columns.start, block.columns.stop),)
                counts[f"layers.1.{block.name}"][(slice(block.rows.start, block.rows.stop), *columns)] += 1
    assert all(n.all() for n in counts.values())
    cut = [layer.query, layer.key, layer.value]
    if p.mode != "ws":
        cut += [layer.output, *(x for f in layer.feed_forwards for x in (f.up, f.down))]
    assert all(counts[f"{linear.name}.weight"].max() <= 1 for linear in cut)


def test_weight_stationary_devices_hold_all_but_the_other_heads() -> None:
    """WS needs memory for the row-wise part on every device (issue part 5: bytes, not parameters)."""
    spec = bert(1024, 16, 4096, 24)
    p = Partition("ws", "a", (Share("a", 2, 32), Share("b", 14, 224), Share("c")), 256)
    rest = 1024 * 1024 + 1024 + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024
    head = 3 * 64 * (1024 + 1)
    assert weight_bytes(spec, p) == {
        "a": 24 * 4 * (rest + 2 * head),
        "b": 24 * 4 * (rest + 14 * head),
        "c": 0,
    }


def test_what_two_partitions_share_is_held_once() -> None:
    """Whether a plan has room beside another: other rows need nothing more, other heads their own."""
    spec = bert(1024, 16, 4096, 24)
    one, rows, heads = (
        Partition("ws", "a", (Share("a", h, r), Share("b", 16 - h, 256 - r)), 256)
        for h, r in ((2, 32), (2, 64), (3, 32))
    )
    head = 24 * 4 * 3 * 64 * (1024 + 1)
    before = weight_bytes(spec, one)
    assert weight_bytes(spec, one, rows) == before
    assert weight_bytes(spec, one, heads) == {"a": before["a"] + 3 * head, "b": before["b"] + 13 * head}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spec", [bert(), bert(pre=True), mobilebert()])
def test_cutting_a_layer_does_not_change_its_products(spec: EncoderSpec, mode: Mode) -> None:
    """Costs are predicted from these: every mode shares out the same multiply-adds."""
    one = Partition("ws", "d0", (Share("d0", spec.n_heads, 6),), 6)
    whole = sum(flops(spec, one, s) for s in stages(spec, one, 0))
    p = partition(spec, mode, 1, 6, 3)
    cut = stages(spec, p, 0)
    sums = sum(r.part.size for s in cut if s.kind in ("reduce", "activate") for r in s.reads)
    assert sum(flops(spec, p, s) for s in cut) - sums == whole
