"""BERT, GPT-NeoX, I-BERT and ConvBERT from transformers' configs, weights random by a fixed seed, as ONNX."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
    """The last hidden state of a model, its mask all ones."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(input_ids=ids, attention_mask=mask)[0]
        return found


def feeds(model: TextModel) -> dict[str, np.ndarray]:
    """Token ids and a mask of ones."""
    rng = np.random.default_rng(SEED)
    ids = rng.integers(1000, model.vocabulary, (1, model.tokens), dtype=np.int64)
    return {"ids": ids, "mask": np.ones_like(ids)}


def export(model: TextModel, path: Path) -> Path:
    """Write the model as ONNX by TorchScript's exporter, shapes fixed."""
    made = Last(build(model))
    arguments = tuple(torch.from_numpy(x) for x in feeds(model).values())
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            made, arguments, str(path), input_names=["ids", "mask"], output_names=["y"],
            opset_version=17, dynamo=False,
        )  # fmt: skip
    return path
