"""BERT, GPT-NeoX, I-BERT and ConvBERT from transformers' configs, weights random by a fixed seed, as ONNX."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pliant.models.hf.checkpoint import open_checkpoint

SEED = 0


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model of `layers` layers; `kind` is one of BUILDERS."""

    kind: str
    layers: int
    hidden: int
    heads: int
    tokens: int = 128
    vocabulary: int = 30522

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.layers} layers of {self.hidden}"


BERT = TextModel("BERT", 12, 768, 12)
MINILM = TextModel("BERT", 6, 384, 12)
GPT_NEOX = TextModel("GPT-NeoX", 6, 512, 8, vocabulary=50432)
IBERT = TextModel("I-BERT", 12, 768, 12, vocabulary=50265)
CONVBERT = TextModel("ConvBERT", 12, 768, 12)


def build(model: TextModel) -> Any:
    """The torch module, in evaluation mode."""
    import transformers

    sizes = {
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "intermediate_size": 4 * model.hidden,
        "vocab_size": model.vocabulary,
    }
    torch.manual_seed(SEED)
    if model.kind == "BERT":
        made = transformers.BertModel(
            transformers.BertConfig(**sizes, attn_implementation="eager"), add_pooling_layer=False
        )
    elif model.kind == "GPT-NeoX":
        made = transformers.GPTNeoXModel(
            transformers.GPTNeoXConfig(**sizes, use_cache=False, attn_implementation="eager")
        )
    elif model.kind == "I-BERT":
        made = transformers.IBertModel(transformers.IBertConfig(**sizes), add_pooling_layer=False)
    else:
        made = transformers.ConvBertModel(transformers.ConvBertConfig(**sizes, embedding_size=model.hidden))
    return made.eval()


class Last(torch.nn.Module):
    """The last hidden state of a model, with a mask of ones."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(input_ids=ids, attention_mask=mask)[0]
        return found


class Pooled(torch.nn.Module):
    """The mean of a text's last hidden states, as in sentence encoders."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.inner(input_ids=ids, attention_mask=mask)[0]
        counted = mask[:, :, None].to(states.dtype)
        found: torch.Tensor = (states * counted).sum(1) / counted.sum(1)
        return found


class Classifier(torch.nn.Module):
    """The logits of a classifier over the mean of a text's last hidden states."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        import transformers
        from transformers.utils import logging

        logging.set_verbosity_error()  # the word table is stored as codes, and there is no pooler
        stored = open_checkpoint(directory)
        self.inner = transformers.BertModel.from_pretrained(
            directory, add_pooling_layer=False, attn_implementation="eager", dtype=torch.float32
        ).eval()
        words = torch.from_numpy(stored.tensor("embeddings.word"))
        self.inner.embeddings.word_embeddings.weight.data = words
        self.weight, self.bias = (
            torch.from_numpy(stored.tensor(f"head.classifier.{name}")) for name in ("weight", "bias")
        )

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.inner(input_ids=ids, attention_mask=mask)[0]
        counted = mask[:, :, None].to(states.dtype)
        pooled: torch.Tensor = (states * counted).sum(1) / counted.sum(1)
        return pooled @ self.weight.T + self.bias


def feeds(model: TextModel, seed: int = SEED) -> dict[str, np.ndarray]:
    """Token ids and a mask of ones."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1000, model.vocabulary, (1, model.tokens), dtype=np.int64)
    return {"ids": ids, "mask": np.ones_like(ids)}


def export(model: TextModel, path: Path, *, is_open: bool = False) -> Path:
    """Write the model as ONNX by TorchScript's exporter, shapes fixed unless batch and tokens are open."""
    arguments = tuple(torch.from_numpy(x) for x in feeds(model).values())
    return export_module(Last(build(model)), arguments, path, {0: "batch", 1: "tokens"} if is_open else {})


def export_pooled(model: TextModel, path: Path) -> Path:
    """Write a sentence encoder, a vector for each text, as ONNX, batch and tokens open."""
    arguments = tuple(torch.from_numpy(x) for x in feeds(model).values())
    return export_module(Pooled(build(model)), arguments, path, {0: "batch", 1: "tokens"}, {0: "batch"})


def export_classifier(directory: Path, path: Path) -> Path:
    """Write a BERT classifier with mean pooling, a Hugging Face directory, as ONNX, batch and tokens open."""
    arguments = tuple(torch.from_numpy(x) for x in feeds(MINILM).values())
    return export_module(Classifier(directory), arguments, path, {0: "batch", 1: "tokens"}, {0: "batch"})


def export_module(
    module: torch.nn.Module,
    arguments: tuple[torch.Tensor, ...],
    path: Path,
    open_dims: Mapping[int, str],
    open_out: Mapping[int, str] | None = None,
) -> Path:
    """Write a module of `ids` and `mask` to `y` as ONNX; `open_dims` of inputs and `open_out` by axis."""
    axes = {"ids": open_dims, "mask": open_dims, "y": open_dims if open_out is None else open_out}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, arguments, str(path), input_names=["ids", "mask"], output_names=["y"],
            dynamic_axes=axes if open_dims else None, opset_version=17, dynamo=False,
        )  # fmt: skip
    return path
