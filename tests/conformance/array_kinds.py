"""Sessions that answer arrays: real ONNX files, models in memory, a compiled directory."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import pliant
from pliant.api.compile_onnx import compile_image
from pliant.compiler.aot.compiled_directory import save
from pliant.compiler.executable.call import Target
from pliant.kernels.emit.isa import host_isa
from tests.conformance.session_kind import Arrays, Feeds, SessionKind, ids, row_of_ids, write_once
from tests.models.onnx_models import parse

SYMBOLIC = parse("g (float[n,8] x) => (float[n,8] y) { a = Softmax(x) b = Exp(a) y = Add(b, x) }")
FIXED = parse("g (float[16,16] x) => (float[16,16] y) { a = MatMul(x, x) b = Softmax(a) y = Add(b, x) }")
BERT = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 33,
    "max_position_embeddings": 24,
}
TOO_LONG = np.ones((1, 25), np.int64)


def _export(path: Path, module: Any, inputs: Mapping[str, Any], axes: Any, opset: int) -> None:
    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for p in module.parameters():
            p.add_(torch.randn_like(p) * 0.05)  # zero biases would vanish from the graph
        torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            str(path),
            input_names=list(inputs),
            output_names=["y"],
            dynamic_axes=axes,
            opset_version=opset,
            dynamo=False,
        )


def _logits_of(inner: Any, names: tuple[str, ...]) -> Any:
    """A transformer as a module that takes arrays in order and gives its logits."""
    import torch

    class Logits(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *given: Any) -> Any:
            return self.inner(**dict(zip(names, given, strict=True))).logits

    return Logits()


def _export_bert(path: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    ids = torch.ones(2, 7, dtype=torch.long)
    inputs = {"input_ids": ids, "attention_mask": ids}
    bert = transformers.BertForSequenceClassification(transformers.BertConfig(**BERT))
    axes = {x: {0: "batch", 1: "length"} for x in inputs}
    _export(path, _logits_of(bert, tuple(inputs)), inputs, axes, 17)


def _export_resnet(path: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    resnet = transformers.ResNetForImageClassification(config)
    inputs = {"pixel_values": torch.randn(1, 3, 32, 32)}
    _export(path, _logits_of(resnet, tuple(inputs)), inputs, {"pixel_values": {0: "batch"}}, 13)


def _export_gru(path: Path) -> None:
    import torch

    torch.manual_seed(0)

    class Encoder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(50, 12)
            self.layers = torch.nn.GRU(12, 20, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, ids: Any) -> Any:
            return self.layers(self.words(ids))[0].amax(1)

    ids = torch.zeros(1, 5, dtype=torch.long)
    _export(path, Encoder(), {"ids": ids}, {"ids": {1: "words"}}, 11)


def _onnx_file(name: str, write: Callable[[Path], object]) -> Callable[[Path], Path]:
    return lambda folder: write_once(folder / f"{name}.onnx", write)


_BERT, _RESNET, _GRU = (
    _onnx_file(name, write)
    for name, write in (("bert", _export_bert), ("resnet", _export_resnet), ("gru", _export_gru))
)


def _compiled(folder: Path) -> Path:
    return write_once(
        folder / "compiled", lambda path: save(compile_image(FIXED, Target(host_isa(), 2))[1], path)
    )


def _arrays(source: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda folder: pliant.open(source(folder), threads=2, cache=folder)


def _onnxruntimes(source: Callable[[Path], Any]) -> Callable[[Path, Feeds], Arrays]:
    def expected(folder: Path, feeds: Feeds) -> Arrays:
        import onnxruntime

        found = source(folder)
        model = found.SerializeToString() if isinstance(found, onnx.ModelProto) else found
        given = str(model) if isinstance(model, Path) else model
        session = onnxruntime.InferenceSession(given, providers=["CPUExecutionProvider"])
        names = [port.name for port in session.get_outputs()]
        return dict(zip(names, session.run(None, dict(feeds)), strict=True))

    return expected


def _masked(i: int) -> Arrays:
    ids = row_of_ids(i)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _noise(i: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(i).standard_normal(shape).astype(np.float32)


_BY_ROWS = SessionKind(
    open=_arrays(lambda folder: SYMBOLIC),
    feeds=lambda i: {"x": _noise(i, i + 1, 8)},
    expected=_onnxruntimes(lambda folder: SYMBOLIC),
    too_long=({"x": _noise(0, 2, 9)}, "axis 1 is 9"),
)

ARRAY_KINDS: dict[str, SessionKind] = {
    "onnx bert": SessionKind(
        open=_arrays(_BERT),
        feeds=_masked,
        expected=_onnxruntimes(_BERT),
        too_long=(dict.fromkeys(("input_ids", "attention_mask"), TOO_LONG), "24"),
    ),
    "onnx resnet": SessionKind(
        open=_arrays(_RESNET),
        feeds=lambda i: {"pixel_values": _noise(i, 1, 3, 32, 32)},
        expected=_onnxruntimes(_RESNET),
        too_long=({"pixel_values": _noise(0, 1, 3, 64, 32)}, "axis 2 is 64"),
    ),
    "onnx gru": SessionKind(
        open=_arrays(_GRU),
        feeds=ids,
        expected=_onnxruntimes(_GRU),
        too_long=({"ids": np.ones((2, 4), np.int64)}, "axis 0 is 2"),
    ),
    "onnx proto": _BY_ROWS,
    "onnx bytes": replace(_BY_ROWS, open=_arrays(lambda folder: SYMBOLIC.SerializeToString())),
    "compiled": SessionKind(
        open=lambda folder: pliant.load(_compiled(folder), threads=2),
        feeds=lambda i: {"x": _noise(i, 16, 16)},
        expected=_onnxruntimes(lambda folder: FIXED),
        too_long=({"x": _noise(0, 17, 16)}, "axis 0 is 17"),
    ),
}
