"""What nodes came from: all of the model between what they read and what they make, and its operations."""

import numpy as np
from onnx import helper, numpy_helper

from pliant.compiler.passes.passes import simplify
from pliant.compiler.rewrite.origin import with_origins
from pliant.compiler.rules.rules import RULES
from pliant.models.onnx.onnx_file import open_onnx
from tests.models.one_graph import bind
from tests.models.onnx_models import parse


def _origins(model: object) -> dict[str, tuple[str, int]]:
    graph = bind(open_onnx(model), {}, {}, supported=RULES)
    made = with_origins(simplify(graph), graph)
    assert made.origins.keys() == {node.outputs[0] for node in made.nodes}
    return {y: (o.name, o.flops) for y, o in made.origins.items()}


def test_fused_nodes_are_named_by_all_that_they_came_from() -> None:
    """Attention: two products and what is between them, 2 * 4 * 6 * (8 + 8) operations."""
    found = _origins(
        parse(
            "g (float[1,4,8] q, float[1,6,8] k, float[1,6,8] v) => (float[1,4,8] y) "
            "{ t = Transpose <perm = [0, 2, 1]> (k) s = MatMul(q, t) p = Softmax(s) y = MatMul(p, v) }"
        )
    )
    assert list(found.values()) == [("y (MatMul+Softmax+MatMul)", 2 * 4 * 6 * 16)]


def test_what_was_folded_into_weights_is_named_too() -> None:
    """A batch norm leaves no kernel behind, but its node is looked for; layouts have no origin."""
    rng = np.random.default_rng(0)
    known = {"w": (16, 16, 3, 3), **dict.fromkeys(("scale", "bias", "mean", "var"), (16,))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"], "norm"),
        helper.make_node("Relu", ["n"], ["y"], "relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 16, 8, 8])],
        [helper.make_tensor_value_info("y", 1, [1, 16, 8, 8])],
        [numpy_helper.from_array(rng.random(s).astype(np.float32), x) for x, s in known.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    names = dict(_origins(model).values())
    assert names["conv (Conv+BatchNormalization+Relu)"] == 2 * 16 * 64 * 16 * 9
    assert sum(names.values()) == 2 * 16 * 64 * 16 * 9


def test_a_graph_that_nothing_was_done_to_keeps_its_names() -> None:
    """One node, one origin, and no operators in brackets."""
    graph = bind(
        open_onnx(parse("g (float[3] x) => (float[3] y) { a = Relu(x) y = Sqrt(a) }")),
        {},
        {},
        supported=RULES,
    )
    origins = with_origins(graph, graph).origins
    assert [origins[y].name for y in "ay"] == ["a", "y"]
    assert not graph.origins
