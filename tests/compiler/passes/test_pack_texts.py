"""Texts without their padding: the rows that texts have are those of the padded graph, or nothing changes."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import encode, image_kernels
from pliant.compiler.executable.image import make_image
from pliant.compiler.executable.kernel_addresses import load_kernels
from pliant.compiler.layout.row_gaps import insert_gaps
from pliant.compiler.passes.pack_texts import TextShape, pack_texts
from pliant.compiler.passes.passes import simplify
from pliant.ir.graph import Graph
from pliant.kernels.emit.isa import host_isa
from pliant.run.batches.packed_texts import make_packed_texts
from pliant.run.batches.token_feed import IS_TOKEN, is_token
from pliant.run.graph.array_stage import ExecutableStage
from pliant.run.packed_weights import SharedWeights
from tests.compiler.passes.chains import Chain
from tests.compiler.rules.run_node import machine

TEXTS, TOKENS, HEADS, DIM = 3, 55, 2, 8
WIDTH = HEADS * DIM
SHAPE = TextShape(TEXTS, TOKENS)


def _layer(lengths: Sequence[int], ffn: int = 24) -> Chain:
    """Positions, one encoder layer; `y` of every token, `z` of every text, `half` in between.

    The mask adds something to the scores of each text's tokens.
    """
    c = Chain(x=(TEXTS, TOKENS, WIDTH), mask=(TEXTS, 1, 1, TOKENS))
    real = is_token(lengths, TOKENS)
    c.feeds["mask"][~real[:, None, None]] = -1e9
    random = np.random.default_rng(7)

    def weight(name: str, *shape: int) -> str:
        return c.constant(name, random.standard_normal(shape) / 4)

    def dense(name: str, x: str, rows: int, columns: int) -> str:
        product = c.add(f"{name}.p", "MatMul", x, weight(f"{name}.w", rows, columns))
        return c.add(name, "Add", product, weight(f"{name}.b", columns))

    def heads(x: str, perm: list[int]) -> str:
        return c.add(f"{x}t", "Transpose", c.add(f"{x}h", "Reshape", x, [TEXTS, -1, HEADS, DIM]), perm=perm)

    e = c.add("e", "Add", "x", weight("positions", TOKENS, WIDTH))
    q, k, v = (dense(name, e, WIDTH, WIDTH) for name in "qkv")
    scores = c.add("qk", "MatMul", heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1]))
    hidden = c.add("masked", "Add", c.add("scaled", "Div", scores, DIM**0.5), "mask")
    mixed = c.add("pv", "MatMul", c.add("p", "Softmax", hidden, axis=-1), heads(v, [0, 2, 1, 3]))
    o = c.add("o", "Reshape", c.add("ot", "Transpose", mixed, perm=[0, 2, 1, 3]), [TEXTS, TOKENS, WIDTH])
    half = c.add("half", "Add", dense("out", o, WIDTH, WIDTH), e)
    n = c.add("n", "LayerNormalization", half, weight("n.w", WIDTH), weight("n.b", WIDTH), axis=-1)
    up = c.add("r", "Relu", dense("up", n, WIDTH, ffn))
    c.add("y", "Add", dense("down", up, ffn, WIDTH), n)
    c.add("z", "ReduceSum", c.add("kept", "Mul", "y", c.constant("real", real[..., None])), [1], keepdims=0)
    return c


def _packed(graph: Graph) -> Graph:
    return pack_texts(insert_gaps(simplify(graph)), SHAPE, host_isa())


def _run(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    library, pool = machine(host_isa())
    image = make_image(graph, Target(host_isa(), 2))
    weights = SharedWeights().pack(image, graph.constants)
    at = load_kernels(image_kernels(image), library)
    stage = ExecutableStage(encode(image), weights, at, pool, texts=make_packed_texts(image, SHAPE))
    return stage.walk(feeds, None)


LENGTHS = st.tuples(*[st.integers(1, TOKENS)] * TEXTS)


@settings(max_examples=15, deadline=None)
@given(LENGTHS)
def test_rows_of_texts_are_those_of_the_reference(lengths: tuple[int, ...]) -> None:
    """Every operator in onnx's reference, padded and masked; sums of at most 55 numbers near 1."""
    c = _layer(lengths)
    real = is_token(lengths, TOKENS)
    found = _run(_packed(c.graph("y", "z", "half")), {**c.feeds, IS_TOKEN: real})
    for name in ("y", "half"):
        np.testing.assert_allclose(found[name][real], c.values[name][real], atol=2e-5)
    np.testing.assert_allclose(found["z"], c.values["z"], atol=2e-4)


def test_padding_is_not_read() -> None:
    """What stands behind a text is left out, not multiplied by a weight of zero: a NaN there stays there."""
    lengths = (20, 1, 49)
    c = _layer(lengths)
    real = is_token(lengths, TOKENS)
    c.feeds["x"][~real] = np.nan
    found = _run(_packed(c.graph("y")), {**c.feeds, IS_TOKEN: real})
    np.testing.assert_allclose(found["y"][real], c.values["y"][real], atol=2e-5)


@pytest.mark.parametrize("ffn", [24, 1024])
def test_rows_are_taken_once_and_put_back_at_the_end(ffn: int) -> None:
    """Between, nothing has padding, with gaps between rows (1024 columns) or without."""
    nodes = _packed(_layer((1, 2, 3), ffn).graph("y")).nodes
    assert [(n.op, n.inputs[0]) for n in nodes if n.op == "TakeRows"] == [
        ("TakeRows", "e"),
        ("TakeRows", "y|packed"),
    ]
    assert {n.op for n in nodes if n.attributes.get("extent")} == {
        *("TakeRows", "FusedMatMul", "SelfAttention", "LayerNormalization")
    }


def test_a_graph_whose_texts_attend_to_nothing_stays() -> None:
    """Rows of products alone may be anything: without attention nothing says that they are texts."""
    c = Chain(x=(TEXTS, TOKENS, WIDTH))
    y = c.add("y", "MatMul", "x", c.constant("w", np.ones((WIDTH, 5))))
    graph = c.graph(y)
    assert pack_texts(graph, SHAPE, host_isa()) is graph


def test_attention_to_other_rows_stays_padded() -> None:
    """Keys of another length than the queries' belong to no text."""
    c = Chain(q=(TEXTS, HEADS, TOKENS, DIM), k=(TEXTS, HEADS, 9, DIM))
    scores = c.add("s", "MatMul", "q", c.add("kt", "Transpose", "k", perm=[0, 1, 3, 2]))
    graph = simplify(c.graph(c.add("y", "MatMul", c.add("p", "Softmax", scores, axis=-1), "k")))
    assert [node.op for node in graph.nodes] == ["FusedAttention"]
    assert pack_texts(graph, SHAPE, host_isa()) is graph
