"""First layers through the compiler, against torch in float64: few channels first become channels last."""

from typing import Any

import numpy as np
import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.conv.test_lower_conv import laid_out, normal, reference
from tests.compiler.rules.run_node import run_node

pytest.importorskip("torch", reason="torch is the reference")

ISAS = [AVX2, X86_64, to_portable(AVX512)]
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 37, 45), (16, 3, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((2, 3, 36, 46), (32, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
    ((3, 1, 5, 17), (16, 1, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 4, 9, 80), (48, 4, 4, 4), {"strides": (4, 4)}),
    ((2, 2, 6, 33), (16, 2, 2, 5), {"strides": (3, 1), "pads": (0, 2, 1, 9)}),
    ((1, 3, 4, 21), (16, 3, 1, 1), {"pads": (2, 16, 0, 0)}),
]


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("activation", ["", "hard_swish", "silu"])
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), SHAPES)
def test_a_first_layer_equals_torchs(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, Any],
    activation: str,
    isa: Isa,
) -> None:
    """Pads of every side, odd sizes, tiles that overlap at a row's end."""
    x, w, b = normal(*x_shape), normal(*w_shape, seed=1), normal(w_shape[0], seed=2)
    y = reference(x, w, b, attributes)
    want = laid_out(_ENDS[activation](y), "nhwc")
    more = {"x_layout": "nchw", "y_layout": "nhwc", "activation": activation, "low": 1 / 6, "high": 0.5}
    types = [TensorType("float32", want.shape)]
    (got,) = run_node("FusedConv", [x, w, b], {**attributes, **more}, types=types, isa=isa, constants=(1, 2))
    K = int(np.prod(w_shape[1:]))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * K**0.5 * 4)


_ENDS: dict[str, Any] = {
    "": lambda y: y,
    "hard_swish": lambda y: y * np.clip(y / 6 + 0.5, 0, 1),
    "silu": lambda y: y / (1 + np.exp(-y)),
}


def test_a_pixel_that_is_not_a_number_reaches_only_what_sees_it() -> None:
    """Neighbouring tiles share what lies in scratch."""
    x, w = normal(1, 3, 20, 40), normal(16, 3, 3, 3, seed=1)
    x[0, 1, 7, 30] = np.nan
    attributes = {"pads": (1, 1, 1, 1), "x_layout": "nchw", "y_layout": "nhwc"}
    types = [TensorType("float32", (1, 20, 40, 16))]
    (got,) = run_node("FusedConv", [x, w], attributes, types=types, isa=AVX2, constants=(1,))
    seen = np.zeros((20, 40), bool)
    seen[6:9, 29:32] = True
    assert (np.isnan(got[0]).all(-1) == seen).all()
    assert np.isfinite(got[0][~seen]).all()


def test_the_kernel_is_taken_for_few_channels_only() -> None:
    """An image of many channels, or a panel that is not whole, has the general kernel."""
    assert _kernel(3, 16) == "planes_3w_1s"
    assert _kernel(3, 20) == _kernel(5, 16) == "conv_nchw_nhwc"


def _kernel(channels: int, outs: int) -> str:
    attributes = {"pads": (1, 1, 1, 1), "x_layout": "nchw", "y_layout": "nhwc"}
    w = normal(outs, channels, 3, 3)
    types = {
        "x": TensorType("float32", (1, channels, 20, 40)),
        "w": TensorType("float32", w.shape),
        "y": TensorType("float32", (1, 20, 40, outs)),
    }
    node = Node("FusedConv", ("x", "w"), ("y",), attributes, "it")
    image = make_image(Graph((node,), ("x",), ("y",), types, {"w": w}), Target(AVX2, 1))
    return image.calls[-1].kernel.name
