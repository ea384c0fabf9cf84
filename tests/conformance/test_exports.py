"""What torch exports of common models, compiled and run: onnxruntime's answers, at more than one shape."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.api.compile_onnx import compile as compile_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
onnxruntime = pytest.importorskip("onnxruntime")
nn, functional = torch.nn, torch.nn.functional

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4  # of the largest output: fp32 sums in another order, through a few layers
BERT = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "vocab_size": 50,
}
VIT = {**{k: v for k, v in BERT.items() if k != "vocab_size"}, "image_size": 32, "patch_size": 8}
LLAMA = {**BERT, "num_key_value_heads": 2, "use_cache": False}


@dataclass(frozen=True)
class Export:
    """A module, its example inputs by name, and which axes are dynamic."""

    module: Any
    inputs: Mapping[str, Any]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


class _Answer(nn.Module):  # type: ignore[misc]
    """The tensor a transformer is asked for."""

    def __init__(self, inner: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.inner, self.names = inner, names

    def forward(self, *given: Any) -> Any:
        answer = self.inner(**dict(zip(self.names, given, strict=True)), return_dict=True)
        return answer.logits if hasattr(answer, "logits") else answer.last_hidden_state


def _text(kind: str, config: str, **sizes: Any) -> Export:
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes))
    inputs = {"input_ids": torch.randint(3, 50, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    inputs["attention_mask"][:, -2:] = 0
    return Export(_Answer(model, tuple(inputs)), inputs, {x: {0: "batch", 1: "length"} for x in inputs})


def _image(kind: str, config: str, pixels: int = 32, **sizes: Any) -> Export:
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes))
    inputs = {"pixel_values": torch.randn(2, 3, pixels, pixels)}
    return Export(_Answer(model, tuple(inputs)), inputs, {"pixel_values": {0: "batch"}})


def _whisper() -> Export:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(
        d_model=32,
        encoder_layers=1,
        encoder_attention_heads=4,
        encoder_ffn_dim=48,
        num_mel_bins=8,
        max_source_positions=20,
    )
    inputs = {"input_features": torch.randn(2, 8, 40)}
    return Export(_Answer(WhisperEncoder(config), tuple(inputs)), inputs, {"input_features": {0: "batch"}})


def _t5() -> Export:
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, use_cache=False
    )
    inputs = {"input_ids": torch.randint(3, 50, (2, 9)), "decoder_input_ids": torch.randint(3, 50, (2, 5))}
    axes = {"input_ids": {0: "batch", 1: "length"}, "decoder_input_ids": {0: "batch", 1: "made"}}
    return Export(_Answer(transformers.T5Model(config), tuple(inputs)), inputs, axes)


class _Inverted(nn.Module):  # type: ignore[misc]
    """MobileNetV3's block: depthwise, hard swish, squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.Hardswish())
        self.wide = nn.Sequential(nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32), nn.Hardswish())
        self.deep = nn.Sequential(nn.Conv2d(32, 32, 5, 1, 2, groups=32), nn.BatchNorm2d(32), nn.Hardswish())
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 8, 1), nn.ReLU(), nn.Conv2d(8, 32, 1), nn.Hardsigmoid()
        )
        self.thin = nn.Conv2d(32, 16, 1)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        y = self.deep(self.wide(x))
        return (x + self.thin(y * self.squeeze(y))).mean((2, 3))


class _UNet(nn.Module):  # type: ignore[misc]
    """Down and up again: transposed convolution, resize, concatenation, group norm."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.bottom = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.InstanceNorm2d(32), nn.LeakyReLU(0.1))
        self.up, self.norm = nn.ConvTranspose2d(32, 16, 2, 2), nn.GroupNorm(4, 32)
        self.last = nn.Conv2d(40, 4, 1)

    def forward(self, x: Any) -> Any:
        a = functional.relu(self.first(x))
        b = functional.relu(self.second(functional.max_pool2d(a, 2)))
        c = self.norm(torch.cat([self.up(self.bottom(functional.avg_pool2d(b, 2))), b], 1))
        return self.last(torch.cat([functional.interpolate(c, scale_factor=2, mode=self.mode), a], 1))


class _Recurrent(nn.Module):  # type: ignore[misc]
    """Sequence and last states."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.layers = kind(12, 20, **options)

    def forward(self, x: Any) -> Any:
        y, states = self.layers(x)
        return (y, *states) if isinstance(states, tuple) else (y, states)


def _pictures(module: Any, *shape: int, axes: tuple[int, ...] = (0,)) -> Export:
    return Export(module, {"x": torch.randn(*shape)}, {"x": {a: f"x{a}" for a in axes}})


def _grouped() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.Conv2d(32, 32, 3, padding=1, groups=8, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, groups=32),
        nn.MaxPool2d(3, 2, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


EXPORTS: dict[str, Callable[[], Export]] = {
    "ConvBERT": lambda: _text("ConvBertModel", "ConvBertConfig", **BERT, embedding_size=32),
    "I-BERT": lambda: _text("IBertModel", "IBertConfig", **BERT),
    "MobileBERT": lambda: _text(
        "MobileBertModel", "MobileBertConfig", **BERT, embedding_size=16, intra_bottleneck_size=32
    ),
    "DistilBERT": lambda: _text(
        "DistilBertModel", "DistilBertConfig", vocab_size=50, dim=32, n_heads=4, n_layers=2, hidden_dim=48
    ),
    "Llama": lambda: _text("LlamaForCausalLM", "LlamaConfig", **LLAMA),
    "Qwen3": lambda: _text("Qwen3ForCausalLM", "Qwen3Config", **LLAMA, head_dim=8),
    "DeBERTa": lambda: _text(
        "DebertaV2Model",
        "DebertaV2Config",
        **BERT,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        type_vocab_size=0,
    ),
    "T5": _t5,
    "Swin": lambda: _image(
        "SwinModel",
        "SwinConfig",
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 1],
        num_heads=[2, 4],
        window_size=4,
    ),
    "ResNet": lambda: _image(
        "ResNetModel", "ResNetConfig", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]
    ),
    "Whisper encoder": _whisper,
    "MobileNetV3": lambda: _pictures(_Inverted(), 2, 3, 24, 24),
    "grouped": lambda: _pictures(_grouped(), 2, 3, 20, 20),
    "U-Net bilinear": lambda: _pictures(_UNet("bilinear"), 2, 3, 16, 24, axes=(0, 2, 3)),
    "U-Net nearest": lambda: _pictures(_UNet("nearest"), 2, 3, 16, 24, axes=(0, 2, 3)),
    "LSTM": lambda: _pictures(_Recurrent(nn.LSTM), 5, 3, 12, axes=(0, 1)),
    # Dynamo writes the length into the graph.
    "LSTM both ways": lambda: _pictures(
        _Recurrent(nn.LSTM, num_layers=2, bidirectional=True), 5, 3, 12, axes=(1,)
    ),
    "GRU both ways": lambda: _pictures(
        _Recurrent(nn.GRU, num_layers=2, bidirectional=True), 5, 3, 12, axes=(0, 1)
    ),
}
QUICK = ("DistilBERT", "Llama", "ResNet", "grouped", "U-Net bilinear", "LSTM both ways")
# The newer exporter takes many times as long; its transformers are in test_transformers.
BY_DYNAMO = ("ResNet", "Whisper encoder", "MobileNetV3", "U-Net bilinear", "LSTM both ways")


def _write(export: Export, is_dynamo: bool, path: Path) -> None:
    names = list(export.inputs)
    if is_dynamo:
        dims = {x: dict.fromkeys(export.axes.get(x, {}), torch.export.Dim.AUTO) for x in names}
        shapes = tuple(dims.values())
        is_variadic = isinstance(export.module, _Answer)
        more = {
            "dynamo": True,
            "external_data": False,
            "verbose": False,
            "dynamic_shapes": (shapes,) if is_variadic else shapes,
        }
    else:
        more = {"dynamo": False, "dynamic_axes": export.axes}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            export.module,
            tuple(export.inputs.values()),
            str(path),
            input_names=names,
            opset_version=18 if is_dynamo else 17,
            **more,
        )


def _fed(export: Export) -> list[dict[str, np.ndarray]]:
    """The example's feeds, and these cut to one along the first axis that is dynamic in all of them."""
    feeds = {x: a.numpy() for x, a in export.inputs.items()}
    shared = set.intersection(*(set(export.axes.get(x, {})) for x in feeds))
    return [feeds, *({x: a.take([0], axis) for x, a in feeds.items()} for axis in sorted(shared)[:1])]


def _check(name: str, is_dynamo: bool, path: Path) -> None:
    torch.manual_seed(0)
    export = EXPORTS[name]()
    export.module.eval()
    with torch.no_grad():
        for p in export.module.parameters():
            p.add_(torch.randn_like(p) * 0.05)  # zero biases would vanish from the graph
    _write(export, is_dynamo, path)
    reference = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    with compile_model(path, threads=2) as session:
        for feeds in _fed(export):
            wanted = reference.run(None, feeds)
            for port, y in zip(reference.get_outputs(), wanted, strict=True):
                got = session.run(feeds)[port.name]
                assert (got.shape, got.dtype) == (y.shape, y.dtype)
                assert np.abs(got - y).max() <= TOLERANCE * np.abs(y).max()


@pytest.mark.parametrize("name", QUICK)
def test_an_export_answers_as_in_onnxruntime(name: str, tmp_path: Path) -> None:
    """A model of each sort, by the exporter most files in the world come from."""
    _check(name, False, tmp_path / "model.onnx")


@pytest.mark.parametrize("name", [name for name in EXPORTS if name not in QUICK])
def test_every_other_export_answers_as_in_onnxruntime(name: str, tmp_path: Path) -> None:
    """What a new user brings first."""
    _check(name, False, tmp_path / "model.onnx")


@pytest.mark.parametrize("name", BY_DYNAMO)
def test_an_export_by_dynamo_answers_as_in_onnxruntime(name: str, tmp_path: Path) -> None:
    """The exporter that torch now recommends writes other nodes for the same model."""
    pytest.importorskip("onnxscript")
    _check(name, True, tmp_path / "model.onnx")
