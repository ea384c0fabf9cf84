"""A model's graphs: valid for every family and width, and the same text from run to run."""

import pytest

from pliant.models.encoder.encoder_graph import embedding_graph, head_graph, layer_graph
from pliant.models.spec import Family, Head
from tests.tiny import FAMILIES, tiny_spec


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_graphs(family: Family) -> None:
    """A graph checks itself when it is made; what enters a layer is what leaves it and the embedding."""
    spec = tiny_spec(family)
    layer, embedding = layer_graph(spec, 3, 10), embedding_graph(spec, "codes", 10)
    assert layer.types["hidden"] == layer.types["out"] == embedding.types["out"]
    assert head_graph(spec, 10).types["hidden"] == layer.types["out"]
    assert [node.op for node in layer.nodes] == [
        *("CodedMatMul", "SelfAttention", "CodedMatMul", "PaddedLayerNormalization"),
        *("CodedMatMul", "CodedMatMul", "PaddedLayerNormalization"),
    ]


def test_integers_are_made_before_every_product() -> None:
    """int8 is the same layer with rounded operands: nothing else may differ."""
    spec = tiny_spec()
    plain = [node.outputs[0] for node in layer_graph(spec, 4, 10).nodes]
    rounded = layer_graph(spec, 4, 10, "int8")
    assert [node.outputs[0] for node in rounded.nodes if node.op != "QuantizeRows"] == plain
    assert sum(node.op == "QuantizeRows" for node in rounded.nodes) == 4


def test_only_what_is_there_is_in_the_head() -> None:
    """Embedding models answer with what was pooled; classifiers with logits, through a dense layer or not."""
    ops = {
        (None, None): ["PoolRows"],
        ("tanh", ("a", "b")): ["PoolRows", "CodedMatMul", "CodedMatMul"],
        (None, ("a", "b")): ["PoolRows", "CodedMatMul"],
    }
    for (dense, labels), expected in ops.items():
        graph = head_graph(tiny_spec(head=Head("cls", dense, labels)), 10)  # type: ignore[arg-type]
        assert [node.op for node in graph.nodes] == expected
        assert graph.types["answer"].shape == (1, 32)
