"""Which convolutions are marked for Winograd's algorithm, and that they answer the same."""

import numpy as np

from pliant.compiler.passes.channels_last import channels_last
from pliant.compiler.passes.mark_winograd import mark_winograd
from tests.compiler.passes.chains import Chain, assert_same


def _chain(outs: int = 32, channels: int = 32, size: int = 16) -> Chain:
    c = Chain(x=(1, channels, size, size))
    c.constant("w", np.random.default_rng(1).standard_normal((outs, channels, 3, 3)) / 17)
    return c


def test_a_large_convolution_is_marked() -> None:
    """Once its layouts are channels last, and not before."""
    c = _chain()
    plain = c.graph(c.add("y", "Conv", "x", "w", pads=[1, 1, 1, 1]))
    assert mark_winograd(plain) is plain
    marked = mark_winograd(channels_last(plain))
    assert [node.attributes.get("algorithm") for node in marked.nodes] == [None, "winograd", None]
    assert_same(marked, c)


def test_what_would_not_gain_or_does_not_fit_stays() -> None:
    """Strides, other windows, odd channels, few tiles: each has the plain kernel."""
    for c, attributes in (
        (_chain(), {"strides": [2, 2]}),
        (_chain(), {"dilations": [2, 2]}),
        (_chain(outs=40), {}),
        (_chain(channels=24), {}),
        (_chain(size=8), {}),
    ):
        turned = channels_last(c.graph(c.add("y", "Conv", "x", "w", **attributes)))
        assert mark_winograd(turned) is turned
