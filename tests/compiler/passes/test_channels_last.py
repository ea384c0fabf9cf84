"""Regions around convolutions are turned, transposed only where they begin and end."""

import numpy as np

from pliant.compiler.fusion.fuse_conv import fuse_conv
from pliant.compiler.passes.channels_last import channels_last
from pliant.ir.graph import Graph
from tests.compiler.passes.chains import Chain, assert_same


def _chain() -> Chain:
    c = Chain(x=(2, 3, 9, 8))
    random = np.random.default_rng(1)
    c.constant("w", random.standard_normal((6, 3, 3, 3)) / 5)
    c.constant("v", random.standard_normal((6, 6, 1, 1)) / 2)
    c.constant("u", random.standard_normal((4, 12, 1, 1)) / 3)
    return c


def _ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_a_block_is_transposed_once_at_each_end() -> None:
    """Pooling, a residual sum, a product with numbers for each channel and a concatenation lie between."""
    c = _chain()
    a = c.add("a", "Conv", "x", "w", pads=[1, 1, 1, 1])
    p = c.add("p", "MaxPool", a, kernel_shape=[2, 2], strides=[2, 2])
    b = c.add("b", "Add", c.add("q", "Conv", p, "v"), p)
    c.constant("gain", np.arange(6).reshape(6, 1, 1) / 6)
    m = c.add("m", "Mul", b, "gain")
    j = c.add("j", "Concat", m, p, axis=1)
    y = c.add("y", "Conv", j, "u")
    turned = channels_last(c.graph(y))
    assert _ops(turned) == [
        "Transpose",
        "FusedConv",
        "MaxPool",
        "FusedConv",
        "Add",
        "Mul",
        "Concat",
        "FusedConv",
        "Transpose",
    ]
    assert_same(turned, c)


def test_an_image_weighed_by_its_own_means_stays_turned() -> None:
    """Squeeze and excitation: one weight for each image and channel, made by convolutions of one pixel."""
    c = _chain()
    a = c.add("a", "Conv", "x", "w")
    gate = c.add("s", "Sigmoid", c.add("q", "Conv", c.add("m", "GlobalAveragePool", a), "v"))
    y = c.add("y", "Conv", c.add("p", "Mul", gate, a), "v")
    turned = channels_last(c.graph(y))
    assert _ops(turned).count("Transpose") == 2
    assert_same(turned, c)


def test_an_operand_of_another_rank_is_turned_back() -> None:
    """Its channels are rows of the image beside it."""
    c = Chain(x=(2, 3, 9, 8), z=(6, 3, 8))
    random = np.random.default_rng(1)
    c.constant("w", random.standard_normal((6, 3, 3, 3)) / 5)
    c.constant("v", random.standard_normal((7, 3, 3)) / 3)
    y = c.add("y", "Mul", c.add("a", "Conv", "x", "w"), c.add("b", "Conv", "z", "v"))
    assert_same(channels_last(c.graph(y)), c)


def test_weights_that_a_convolution_makes_are_turned_back() -> None:
    """A tracker correlates an image with the features of its template."""
    c = Chain(t=(6, 3, 5, 5), s=(1, 3, 9, 8))
    c.constant("k", np.random.default_rng(1).standard_normal((6, 3, 3, 3)) / 5)
    z, x = c.add("z", "Conv", "t", "k"), c.add("f", "Conv", "s", "k")
    assert_same(channels_last(c.graph(c.add("y", "Conv", x, z))), c)


def test_what_leaves_the_region_twice_is_transposed_once() -> None:
    """Other operators see the layout they know."""
    c = _chain()
    a = c.add("a", "Conv", "x", "w")
    s = c.add("s", "Softmax", a, axis=1)
    y = c.add("y", "Mul", c.add("r", "Softmax", a, axis=2), s)
    turned = channels_last(c.graph(y, "a"))
    assert _ops(turned).count("Transpose") == 2
    assert turned.outputs == ("y", "a")
    assert_same(turned, c)


def test_global_pooling_ends_a_classifier_in_the_region() -> None:
    """With the fused residual turned as well."""
    c = _chain()
    a = c.add("a", "Conv", "x", "w")
    b = c.add("b", "Relu", c.add("t", "Add", c.add("q", "Conv", a, "v"), a))
    y = c.add("y", "GlobalAveragePool", b)
    turned = channels_last(fuse_conv(c.graph(y)))
    assert _ops(turned) == ["Transpose", "FusedConv", "FusedConv", "GlobalAveragePool", "Transpose"]
    assert turned.nodes[2].inputs == ("a.last", "v", "", "a.last")
    assert_same(turned, c)


def test_graphs_without_convolutions_are_left_alone() -> None:
    """The same object, so that passes know."""
    c = Chain(x=(1, 2, 3, 4))
    graph = c.graph(c.add("y", "Relu", "x"))
    assert channels_last(graph) is graph


def test_an_enlarged_image_is_not_turned_back() -> None:
    """Between convolutions it stays channels last; what leaves the region leaves it before it grows."""
    c = _chain()
    c.constant("twice", np.float32([1, 1, 2, 2]))
    a = c.add("a", "Conv", "x", "w")
    b = c.add("b", "Conv", c.add("r", "Resize", a, "", "twice", mode="linear"), "v")
    y = c.add("y", "Resize", b, "", "twice", mode="nearest")
    turned = channels_last(c.graph(y))
    assert _ops(turned) == ["Transpose", "FusedConv", "Resize", "FusedConv", "Transpose", "Resize"]
    assert_same(turned, c)


def test_groups_between_plain_images_are_left_as_they_are() -> None:
    """Their kernel reads and writes both orders; one that a convolution reads is turned with it."""
    c = Chain(x=(1, 32, 9, 8))
    c.constant("w", np.random.default_rng(1).standard_normal((32, 4, 3, 3)) / 6)
    c.constant("v", np.random.default_rng(2).standard_normal((6, 32, 1, 1)) / 6)
    a = c.add("a", "Conv", "x", "w", group=8, pads=[1, 1, 1, 1])
    assert _ops(channels_last(c.graph(a))) == ["Conv"]
    y = c.add("y", "Conv", a, "v")
    turned = channels_last(c.graph(y))
    assert _ops(turned) == ["Transpose", "FusedConv", "FusedConv", "Transpose"]
    assert_same(turned, c)
