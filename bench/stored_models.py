"""Models with stored weight formats: MiniLM with weights stored as int8, ViT-B/16 on
nn.MultiheadAttention.
"""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

Style = Callable[[str, np.ndarray, int], tuple[list[onnx.NodeProto], list[onnx.TensorProto]]]
"""The nodes and constants that compute matrix `name` from its stored form, with a scale along an axis."""


def store(source: Path, out: Path, style: str) -> Path:
    """The model with every matrix in int8, one scale per column (per row of a lookup table)."""
    proto = onnx.load(source)
    tables = {node.input[0] for node in proto.graph.node if node.op_type == "Gather"}
    kept, nodes = [], []
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.ndim != 2 or values.dtype != np.float32 or values.size < 4096:
            kept.append(tensor)
            continue
        made, constants = STYLES[style](tensor.name, values, 0 if tensor.name in tables else 1)
        nodes += made
        kept += constants
    nodes += proto.graph.node
    del proto.graph.initializer[:], proto.graph.node[:]
    proto.graph.initializer.extend(kept)
    proto.graph.node.extend(nodes)
    onnx.save(proto, out)
    return out


def _cast_and_mul(
    name: str, values: np.ndarray, axis: int
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    codes, scales = _rounded(values, axis)
    nodes = [
        helper.make_node("Cast", [f"{name}_codes"], [f"{name}_real"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", [f"{name}_real", f"{name}_scales"], [name]),
    ]
    return nodes, _constants(name, codes, scales)


def _dequantize(
    name: str, values: np.ndarray, axis: int
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    codes, scales = _rounded(values, axis)
    node = helper.make_node("DequantizeLinear", [f"{name}_codes", f"{name}_scales"], [name], axis=axis)
    return [node], _constants(name, codes, scales.reshape(-1))


def _half(name: str, values: np.ndarray, axis: int) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    node = helper.make_node("Cast", [f"{name}_half"], [name], to=onnx.TensorProto.FLOAT)
    return [node], [numpy_helper.from_array(values.astype(np.float16), f"{name}_half")]


def _rounded(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    largest = np.abs(values).max(1 - axis, keepdims=True)
    scales = np.maximum(largest / 127, 1e-9).astype(np.float32)  # a row of padding is 0
    return np.rint(values / scales).astype(np.int8), scales


def _constants(name: str, codes: np.ndarray, scales: np.ndarray) -> list[onnx.TensorProto]:
    parts = (("codes", codes), ("scales", scales))
    return [numpy_helper.from_array(array, f"{name}_{part}") for part, array in parts]


STYLES: Mapping[str, Style] = {
    "Cast and Mul": _cast_and_mul,
    "DequantizeLinear": _dequantize,
    "float16 and Cast": _half,
}


class _Block(nn.Module):
    """A pre-norm layer, as in torchvision's ViT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.feed_forward(self.second(x))


class VisionTransformer(nn.Module):
    """ViT-B/16 on 224 x 224 pixels: 197 tokens, 86 million weights, random by a fixed seed."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.layers = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        x = self.patches(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.token.expand(n, -1, -1), x], 1) + self.places
        found: Tensor = self.head(self.norm(self.layers(x))[:, 0])
        return found


def export_vit(path: Path, batch: int) -> Path:
    """Write ViT-B/16 as ONNX by TorchScript's exporter, input `x` [batch, 3, 224, 224]."""
    torch.manual_seed(0)
    fast: Any = torch.backends.mha
    was = fast.get_fastpath_enabled()
    fast.set_fastpath_enabled(False)  # its operator has no ONNX form
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            model = VisionTransformer().eval()
            arguments = (torch.randn(batch, 3, 224, 224),)
            torch.onnx.export(
                model, arguments, str(path), input_names=["x"], output_names=["y"],
                opset_version=17, dynamo=False,
            )  # fmt: skip
    finally:
        fast.set_fastpath_enabled(was)
    return path
