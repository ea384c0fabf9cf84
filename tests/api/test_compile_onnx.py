"""`compile_image`: a model compiled for another CPU than this one."""

import numpy as np
import pytest
from onnx import numpy_helper

from pliant.api import compile_onnx
from pliant.api.compile_onnx import compile_image
from pliant.compiler.executable.call import Target
from pliant.errors import InputError
from pliant.kernels.emit.isa import AVX2, AVX512_AMX, AVX512_BF16, NEON_BF16, X86_64, Isa, is_runnable
from tests.compiler.rules.run_node import machine
from tests.models.onnx_models import parse

CLASSIFIER = parse(
    "g (float[1,3,9,9] x) => (float[1,32] y) { c = Conv(x, w) f = Flatten(c) y = MatMul(f, v) }"
)
CLASSIFIER.graph.initializer.extend(
    numpy_helper.from_array(np.ones(shape, np.float32), name)
    for name, shape in (("w", (4, 3, 3, 3)), ("v", (196, 32)))
)
# Its product is rounded for every CPU that has bfloat16.


@pytest.mark.parametrize("host", [X86_64, AVX512_BF16, AVX512_AMX], ids=["sse", "bf16", "amx"])
@pytest.mark.parametrize(
    ("target", "is_rounded"), [(AVX512_AMX, True), (AVX512_BF16, False), (NEON_BF16, False)]
)
def test_convolutions_round_to_bfloat16_where_the_target_has_tiles(
    host: Isa, target: Isa, is_rounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU that compiles has no part in it: its outputs would depend on where a model was compiled."""
    if host.name == "avx512" and not is_runnable(AVX512_BF16):
        pytest.skip("this CPU cannot take the part of that one")
    monkeypatch.setattr(compile_onnx, "shared_pool", lambda *_: machine(host))
    graph, _, _ = compile_image(CLASSIFIER, Target(target), compute="bf16")
    (node,) = [node for node in graph.nodes if node.op in ("Conv", "FusedConv")]
    assert node.flag("bf16") == is_rounded


def test_a_target_without_products_of_bfloat16_is_refused() -> None:
    """Its kernels would need instructions that it does not have."""
    with pytest.raises(InputError, match="row avx2 lacks products of bfloat16, which avx512-amx, "):
        compile_image(CLASSIFIER, Target(AVX2), compute="bf16")
