"""Attention as exporters write it becomes one node: as text, and with equal results."""

import numpy as np
import pytest

from pliant.compiler.fusion.fuse_attention import fuse_attention
from pliant.compiler.passes.dead_code import drop_dead_code
from tests.compiler.passes.chains import Chain, assert_same, lines

BATCH, ROWS, HEADS, DIM = 2, 7, 3, 8


def _heads(c: Chain, x: str, perm: list[int]) -> str:
    return c.add(f"{x}t", "Transpose", c.add(f"{x}h", "Reshape", x, [BATCH, -1, HEADS, DIM]), perm=perm)


def _attend(c: Chain, scores: str, v: str, zeroes: bool = False) -> str:
    p = c.add("p", "Softmax", scores, axis=-1)
    if zeroes:
        p = c.add("pz", "Where", c.add("nan", "IsNaN", p), 0.0, p)
    out = c.add("o", "Transpose", c.add("pv", "MatMul", p, v), perm=[0, 2, 1, 3])
    return c.add("y", "Reshape", out, [BATCH, ROWS, HEADS * DIM])


def _qkv(c: Chain) -> tuple[str, str, str]:
    return _heads(c, "q", [0, 2, 1, 3]), _heads(c, "k", [0, 2, 3, 1]), _heads(c, "v", [0, 2, 1, 3])


def _chain(keys: int = 9, **more: tuple[int, ...]) -> Chain:
    width = HEADS * DIM
    return Chain(q=(BATCH, ROWS, width), k=(BATCH, keys, width), v=(BATCH, keys, width), **more)


def test_eager_attention_reads_and_writes_in_place() -> None:
    """Scores divided by a number, unequal lengths; neither transposes nor copies are left."""
    c = _chain()
    q, k, v = _qkv(c)
    y = _attend(c, c.add("s", "Div", c.add("qk", "MatMul", q, k), DIM**0.5), v)
    fused = fuse_attention(c.graph(y))
    node = next(node for node in fused.nodes if node.op == "FusedAttention")
    assert node.inputs == ("q", "k", "v")
    assert node.attributes["q_view"] == (0, 2, 3, 7, 8, 168, 8, 24, 1)
    assert node.attributes["y_view"] == (0, 2, 3, 7, 8, 168, 8, 24, 1)
    assert node.attributes["scale"] == pytest.approx(DIM**-0.5)
    assert_same(fused, c)


@pytest.mark.parametrize("shape", [(BATCH, HEADS, ROWS, DIM), (BATCH * HEADS, ROWS, DIM)])
@pytest.mark.parametrize("perm", [(), (2, 0, 1, 3), (1, 0, 2), (0, 1, 3, 2)])
def test_the_output_is_written_in_the_order_that_is_asked_for(
    shape: tuple[int, ...], perm: tuple[int, ...]
) -> None:
    """Sequence-first modules take [L, B, H, D]; with weights, torch has one batch dimension."""
    if perm and len(perm) != len(shape):
        pytest.skip("another rank")
    c = Chain(q=shape, k=(*shape[:-2], 9, DIM), v=(*shape[:-2], 9, DIM))
    turned = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    scores = c.add("qk", "MatMul", "q", c.add("kt", "Transpose", "k", perm=turned))
    y = c.add("pv", "MatMul", c.add("p", "Softmax", scores, axis=-1), "v")
    y = c.add("y", "Transpose", y, perm=list(perm)) if perm else y
    fused = drop_dead_code(fuse_attention(c.graph(y)))
    is_written_so = perm[-1:] in ((), (len(shape) - 1,))
    assert [node.op for node in fused.nodes] == ["FusedAttention"] + ["Transpose"] * (not is_written_so)
    assert_same(fused, c)


@pytest.mark.parametrize(
    ("q", "k", "v", "mask", "is_fused"),
    [
        (
            (1, 2, 1, 8),
            (1, 2, 6, 8),
            (1, 2, 6, 8),
            (1, 1, 4, 6),
            False,
        ),  # one query, four rows of mask
        ((1, 2, 4, 8), (1, 2, 1, 8), (1, 2, 6, 8), (1, 1, 4, 6), False),  # one key, six of the mask
        ((1, 2, 4, 8), (1, 2, 6, 8), (3, 2, 6, 8), (1, 1, 4, 6), False),  # the values have a batch
        ((2, 4, 8), (2, 6, 8), (3, 2, 6, 8), (2, 4, 6), False),
        ((1, 2, 4, 8), (1, 2, 6, 8), (3, 2, 6, 8), (3, 1, 4, 6), True),  # so has the mask
    ],
)
def test_scores_that_are_broadcast_are_right(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], mask: tuple[int, ...], is_fused: bool
) -> None:
    """By a mask, or by the values: fused only where every row and key has its own product."""
    c = Chain(q=q, k=k, v=v, mask=mask)
    kt = c.add("kt", "Transpose", "k", perm=[*range(len(k) - 2), len(k) - 1, len(k) - 2])
    scores = c.add("s", "Add", c.add("qk", "MatMul", "q", kt), "mask")
    fused = fuse_attention(c.graph(c.add("pv", "MatMul", c.add("p", "Softmax", scores, axis=-1), "v")))
    assert ("FusedAttention" in [node.op for node in fused.nodes]) == is_fused
    assert_same(fused, c)


@pytest.mark.parametrize("shape", [(BATCH, 1, 1, 9), (1, 1, ROWS, 9), (BATCH, HEADS, ROWS, 9)])
def test_sdpa_with_any_mask_is_one_node(shape: tuple[int, ...]) -> None:
    """torch scales both operands by the root of the scale, adds a mask, and turns NaN rows to zero."""
    c = _chain(mask=shape)
    c.feeds["mask"][..., -2:] = -np.inf
    c.feeds["mask"][0, ..., :] = -np.inf
    q, k, v = _qkv(c)
    root = DIM**-0.25
    with np.errstate(invalid="ignore"):
        scores = c.add("qk", "MatMul", c.add("qs", "Mul", q, root), c.add("ks", "Mul", k, root))
        y = _attend(c, c.add("s", "Add", scores, "mask"), v, zeroes=True)
    fused = fuse_attention(c.graph(y))
    node = next(node for node in fused.nodes if node.op == "FusedAttention")
    assert node.inputs == ("q", "k", "v", "mask")
    assert node.attributes["is_empty_zero"] == 1
    assert_same(fused, c)


def test_a_mask_by_where_is_added() -> None:
    """GPT-2's and DistilBERT's way: hidden scores are replaced by a large negative number."""
    c = _chain(keys=ROWS)
    c.constant("seen", np.tril(np.ones((1, 1, ROWS, ROWS))), "bool")
    q, k, v = _qkv(c)
    scores = c.add("s", "Mul", c.add("qk", "MatMul", q, k), DIM**-0.5)
    y = _attend(c, c.add("m", "Where", "seen", scores, float(np.finfo(np.float32).min)), v)
    fused = fuse_attention(c.graph(y))
    assert "m.mask = Where (seen, m.zero, m.2)" in lines(fused)
    assert_same(fused, c)


@pytest.mark.parametrize("is_hidden_first", [False, True])
@pytest.mark.parametrize("low", [-1e4, -1e9, float(np.finfo(np.float32).min)])
def test_a_row_that_sees_no_key_gets_the_mean(low: float, is_hidden_first: bool) -> None:
    """Its scores all become the same number, whatever they were; rows that see some keys keep theirs."""
    c = _chain()
    seen = np.ones((BATCH, 1, ROWS, 9), bool)
    seen[0, 0, 2], seen[1, 0, :, 4:], seen[1, 0, 5] = False, False, False
    c.constant("seen", seen ^ is_hidden_first, "bool")
    q, k, v = _qkv(c)
    scores = c.add("s", "Mul", c.add("qk", "MatMul", q, k), DIM**-0.5)
    y = _attend(c, c.add("m", "Where", "seen", *((low, scores) if is_hidden_first else (scores, low))), v)
    fused = fuse_attention(c.graph(y))
    assert "FusedAttention" in [node.op for node in fused.nodes]
    assert_same(fused, c)


def test_scores_that_are_an_output_stay() -> None:
    """Whoever asks for attention weights gets them."""
    c = _chain()
    q, k, v = _qkv(c)
    y = _attend(c, c.add("s", "Div", c.add("qk", "MatMul", q, k), DIM**0.5), v)
    graph = c.graph(y, "p")
    assert fuse_attention(graph) is graph
