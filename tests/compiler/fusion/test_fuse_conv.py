"""Convolutions take norms, sums and activations along: as text, and with equal results."""

import numpy as np
import pytest

from pliant.compiler.fusion.fuse_conv import fuse_conv
from pliant.compiler.passes.fold_batch_norm import fold_batch_norm
from tests.compiler.passes.chains import Chain, assert_same, lines


def _chain() -> Chain:
    c = Chain(x=(2, 5, 6, 7), r=(2, 18, 6, 7))
    random = np.random.default_rng(1)
    c.constant("w", random.standard_normal((18, 5, 3, 3)))
    c.constant("v", random.standard_normal((18, 5, 3, 3)))
    c.constant("b", random.standard_normal(18))
    for name in ("scale", "shift", "mean"):
        c.constant(name, random.standard_normal(18))
    c.constant("variance", random.uniform(0.5, 2, 18))
    return c


def _conv(c: Chain, y: str, w: str = "w") -> str:
    return c.add(y, "Conv", "x", w, "b", pads=[1, 1, 1, 1])


def test_a_batch_norm_becomes_weights_and_bias() -> None:
    """As in every residual network at inference."""
    c = _chain()
    y = c.add("y", "BatchNormalization", _conv(c, "p"), "scale", "shift", "mean", "variance")
    folded = fold_batch_norm(c.graph(y))
    assert lines(folded) == ["y = Conv <pads=(1, 1, 1, 1)> (x, y.weights, y.bias)"]
    assert_same(folded, c)


def test_a_batch_norm_whose_convolution_is_read_elsewhere_stays() -> None:
    """The convolution's own result is wanted too."""
    c = _chain()
    y = c.add("y", "BatchNormalization", _conv(c, "p"), "scale", "shift", "mean", "variance")
    graph = c.graph(y, "p")
    assert fold_batch_norm(graph) is graph


def test_a_sum_and_an_activation_ride_along() -> None:
    """The end of a residual block."""
    c = _chain()
    y = c.add("y", "Relu", c.add("s", "Add", "r", _conv(c, "p")))
    fused = fuse_conv(c.graph(y))
    assert lines(fused) == [
        "y = FusedConv <activation='relu', high=0.0, low=0.0, pads=(1, 1, 1, 1)> (x, w, b, r)"
    ]
    assert_same(fused, c)


def test_of_two_convolutions_added_the_later_takes_the_other() -> None:
    """A block whose skip is a convolution: neither may be lost, and order must hold."""
    c = _chain()
    y = c.add("y", "Relu", c.add("s", "Add", _conv(c, "p"), _conv(c, "q", "v")))
    fused = fuse_conv(c.graph(y))
    assert [node.op for node in fused.nodes] == ["Conv", "FusedConv"]
    assert fused.nodes[1].inputs == ("x", "v", "b", "p")
    assert_same(fused, c)


@pytest.mark.parametrize(
    ("op", "more", "attributes", "shown"),
    [
        ("Clip", (0.0, 6.0), {}, "activation='clip', high=6.0, low=0.0"),
        ("LeakyRelu", (), {"alpha": 0.25}, "activation='leaky', high=0.0, low=0.25"),
        ("Sigmoid", (), {}, "activation='sigmoid', high=0.0, low=0.0"),
        ("HardSigmoid", (), {"alpha": 0.25, "beta": 0.5}, "activation='hard_sigmoid', high=0.5, low=0.25"),
    ],
)
def test_activations_are_named_with_their_numbers(
    op: str, more: tuple[float, ...], attributes: dict[str, float], shown: str
) -> None:
    """Each of the epilogue's."""
    c = _chain()
    y = c.add("y", op, _conv(c, "p"), *more, **attributes)
    fused = fuse_conv(c.graph(y))
    assert lines(fused) == [f"y = FusedConv <{shown}, pads=(1, 1, 1, 1)> (x, w, b)"]
    assert_same(fused, c)


def test_swish_is_found_as_a_product_with_its_gate() -> None:
    """As exporters write it, with the factors in either order."""
    for gate, order in (("Sigmoid", 0), ("HardSigmoid", 1)):
        c = _chain()
        p = _conv(c, "p")
        pair = [p, c.add("g", gate, p)]
        y = c.add("y", "Mul", *(pair if order else pair[::-1]))
        fused = fuse_conv(c.graph(y))
        assert [node.op for node in fused.nodes] == ["FusedConv"]
        assert fused.nodes[0].attributes["activation"] == ("silu" if gate == "Sigmoid" else "hard_swish")
        assert_same(fused, c)


def test_what_is_read_elsewhere_or_broadcasts_stays() -> None:
    """The convolution is an output of its own; the sum is no residual."""
    c = _chain()
    y = c.add("y", "Relu", _conv(c, "p"))
    graph = c.graph(y, "p")
    assert fuse_conv(graph) is graph
    c = _chain()
    c.constant("one", np.ones((1, 18, 1, 1)))
    graph = c.graph(c.add("y", "Add", _conv(c, "p"), "one"))
    assert fuse_conv(graph) is graph
