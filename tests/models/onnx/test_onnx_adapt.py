"""Convolutions in half precision: the same node in float32 between casts."""

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from pliant.api.compile_onnx import compile as compile_model

torch = pytest.importorskip("torch", reason="torch is the reference")


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize(
    ("op", "dtype"), [("Conv", "float16"), ("ConvTranspose", "float16"), ("Conv", "float64")]
)
def test_a_convolution_of_other_floats_is_computed_in_float32(op: str, dtype: str, is_constant: bool) -> None:
    """Exports of `model.half()` hold them; float32 is more than float16 asks and what float64 gets."""
    random = np.random.default_rng(0)
    shapes = {"x": (1, 3, 6, 6), "w": (4, 3, 3, 3) if op == "Conv" else (3, 4, 3, 3), "b": (4,)}
    feeds: dict[str, Any] = {n: random.standard_normal(s).astype(dtype) for n, s in shapes.items()}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    fed = ["x"] if is_constant else ["x", "w", "b"]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w", "b"], ["y"])],
        "g",
        [helper.make_tensor_value_info(n, kind, shapes[n]) for n in fed],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(feeds[n], n) for n in ("w", "b") if n not in fed],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    convolve = torch.nn.functional.conv2d if op == "Conv" else torch.nn.functional.conv_transpose2d
    wanted = convolve(*(torch.from_numpy(feeds[n]).double() for n in "xwb")).numpy()
    with compile_model(model, threads=1) as session:
        got = session.run({n: feeds[n] for n in fed})["y"]
    assert got.dtype == dtype
    # Half an ulp of float16 at the largest output, 10 or so; float32 sums of 27 terms are far below.
    np.testing.assert_allclose(got, wanted, rtol=1e-3 if dtype == "float16" else 1e-5, atol=4e-3)
