"""Recurrent models for tests: directories with torch's weights, and torch's own answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import models, normalizers, pre_tokenizers

from pliant.models.recurrent.recurrent_source import RecurrentSource
from pliant.models.recurrent.recurrent_spec import RecurrentSpec

WORDS = ("[PAD]", "[UNK]", "a", "film", "good", "bad", "very", "not", "plot", ".")


def write_recurrent(directory: Path, spec: RecurrentSpec, seed: int = 0, dtype: str = "float32") -> Path:
    """A directory of `spec` with torch's kind of weights and a tokenizer of WORDS."""
    directory.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "model_type": "recurrent",
        "cell": spec.cell,
        "vocab_size": spec.vocab,
        "embedding_size": spec.inputs,
        "hidden_size": spec.hidden,
        "num_layers": spec.n_layers,
        "bidirectional": spec.is_bidirectional,
        "pooling": list(spec.pooling),
    }
    if spec.labels is not None:
        config["id2label"] = {str(i): label for i, label in enumerate(spec.labels)}
    (directory / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(seed)
    reach = {name: 1.0 if name == "embedding.weight" else spec.hidden**-0.5 for name in spec.tensors()}
    tensors = {
        name: random.uniform(-reach[name], reach[name], shape).astype(dtype)
        for name, shape in spec.tensors().items()
    }
    save_file(tensors, directory / "model.safetensors")
    words = {word: i for i, word in enumerate(WORDS[: spec.vocab])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, "[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def torchs_layers(source: RecurrentSource) -> Any:
    """torch's LSTM or GRU with the source's weights."""
    import torch

    spec = source.spec
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[spec.cell]
    layers = kind(spec.inputs, spec.hidden, num_layers=spec.n_layers, bidirectional=spec.is_bidirectional)
    named = {name.removeprefix("rnn."): w for name, w in source.weights.items() if name.startswith("rnn.")}
    layers.load_state_dict({name: torch.from_numpy(w.copy()) for name, w in named.items()})
    return layers.eval()


def torchs_answer(source: RecurrentSource, ids: np.ndarray) -> np.ndarray:
    """Logits, or the pooled vector, as torch computes them."""
    import torch

    with torch.no_grad():
        x = torch.from_numpy(source.table[ids].astype(np.float32))
        states, last = torchs_layers(source)(x[:, None])
        last = last[0] if source.spec.cell == "lstm" else last
        found = {
            "last": last[-source.spec.directions :].reshape(-1),
            "max": states[:, 0].amax(0),
            "mean": states[:, 0].mean(0),
        }
        pooled = torch.cat([found[pooling] for pooling in source.spec.pooling])
        if source.spec.labels is not None:
            w, b = (torch.from_numpy(source.weights[f"classifier.{x}"]) for x in ("weight", "bias"))
            pooled = w @ pooled + b
    return np.asarray(pooled)
