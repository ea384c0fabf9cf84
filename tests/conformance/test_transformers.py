"""Transformers as torch's two exporters write them fuse whole, and answer what onnxruntime answers."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.api.compile_onnx import compile as compile_model
from pliant.compiler.passes.passes import simplify
from pliant.compiler.rules.rules import RULES
from pliant.models.onnx.onnx_file import open_onnx
from tests.models.one_graph import bind

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
onnxruntime = pytest.importorskip("onnxruntime")

LAYERS, TOKENS = 2, 20
SIZES = {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 50}


def _build(kind: str, attention: str) -> Any:
    torch.manual_seed(0)
    sizes = {**SIZES, "num_hidden_layers": LAYERS, "attn_implementation": attention}
    if kind == "BERT":
        model = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False)
    elif kind == "GPT-NeoX":
        model = transformers.GPTNeoXModel(transformers.GPTNeoXConfig(**sizes, use_cache=False))
    else:
        del sizes["vocab_size"]
        config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
        model = transformers.ViTModel(config, add_pooling_layer=False)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)  # zero biases would vanish from the graph
    return model.eval()


class _Last(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any, mask: Any = None) -> Any:
        return self.inner(x)[0] if mask is None else self.inner(input_ids=x, attention_mask=mask)[0]


def _feeds(kind: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    if kind == "ViT":
        return {"x": random.standard_normal((1, 3, 32, 32)).astype(np.float32)}
    mask = np.ones((1, TOKENS), np.int64)
    mask[:, -3:] = 0
    return {"x": random.integers(0, 50, (1, TOKENS)), "mask": mask}


def _export(kind: str, attention: str, is_dynamo: bool, feeds: Mapping[str, np.ndarray], path: Path) -> None:
    arguments = tuple(torch.from_numpy(a) for a in feeds.values())
    more = {"external_data": False} if is_dynamo else {}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Last(_build(kind, attention)),
            arguments,
            str(path),
            input_names=list(feeds),
            output_names=["y"],
            opset_version=18 if is_dynamo else 17,
            dynamo=is_dynamo,
            **more,
        )


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("is_dynamo", [False, True], ids=["torchscript", "dynamo"])
@pytest.mark.parametrize("kind", ["BERT", "GPT-NeoX", "ViT"])
def test_every_layer_fuses_and_answers_like_onnxruntime(
    kind: str, is_dynamo: bool, attention: str, tmp_path: Path
) -> None:
    """One attention and no softmax, one kernel a product, no transpose between them; equal to 1e-4."""
    if is_dynamo:
        pytest.importorskip("onnxscript")
    feeds, path = _feeds(kind), tmp_path / "model.onnx"
    _export(kind, attention, is_dynamo, feeds, path)
    graph = simplify(bind(open_onnx(path), {}, supported=RULES))
    ops = [node.op for node in graph.nodes]
    assert ops.count("FusedAttention") == LAYERS
    assert ops.count("LayerNormalization") == sum("LayerNorm" in op for op in ops)
    assert not {"Softmax", "Erf", "Neg"} & set(ops)
    assert ops.count("Transpose") <= 3 * (kind == "ViT")  # around its convolution
    expected = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = expected.run(None, {x.name: feeds[x.name] for x in expected.get_inputs()})[0]
    with compile_model(path, threads=2) as session:
        np.testing.assert_allclose(session.run(feeds)["y"], wanted, rtol=1e-4, atol=1e-4)
