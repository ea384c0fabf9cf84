"""Model directories small enough for any test: random weights, a word tokenizer, every family and head."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from pliant.models.hf.checkpoint import save_checkpoint
from pliant.models.spec import Activation, Family, Head, ModelSpec, tensor_shapes

WORDS = ("a", "an", "the", "it", "is", "was", "not", "no", "and", "or", "but", "of", "to", "in", "on")
WORDS += ("good", "bad", "film", "movie", "story", "plot", "actor")
SPECIALS: dict[str, tuple[str, ...]] = {
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
}
VOCAB = 64
FAMILIES: tuple[Family, ...] = ("bert", "distilbert", "roberta", "electra")
DENSE: dict[Family, Activation] = {"bert": "tanh", "distilbert": "relu", "roberta": "tanh", "electra": "gelu"}


def tiny_spec(family: Family = "bert", is_classifier: bool = True, **changes: object) -> ModelSpec:
    """2 layers of 4 heads of 8, 16 neurons a slice, 24 tokens; `changes` replace single fields."""
    head = (
        Head("cls", DENSE[family], ("negative", "positive"))
        if is_classifier
        else Head("mean", None, None, True)
    )
    spec = ModelSpec(
        family=family,
        n_layers=2,
        n_heads=4,
        hidden=32,
        ffn=64,
        embedding=20 if family == "electra" else 32,
        vocab=VOCAB,
        max_tokens=24,
        position_offset=2 if family == "roberta" else 0,
        n_types={"bert": 2, "distilbert": 0, "roberta": 1, "electra": 2}[family],
        activation="gelu",
        norm_eps=1e-12 if family != "roberta" else 1e-5,
        head=head,
        widths=(4,),
        precision="F32",
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def random_tensors(spec: ModelSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of about the scale of trained ones, biases and norms away from 0 and 1 so that each matters."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(spec):
        values = rng.standard_normal(shape)
        if name.endswith("norm.weight"):
            values = 1.0 + 0.1 * values
        elif len(shape) == 1:
            values = 0.1 * values
        elif not name.startswith("embeddings."):
            values = values * 1.5 / np.sqrt(shape[1])
        tensors[name] = values.astype(np.float32)
    return tensors


def write_tokenizer(directory: Path, family: Family = "bert") -> Path:
    """A tokenizer.json of lower-cased words and single letters with the family's special tokens."""
    is_roberta = family == "roberta"
    specials = SPECIALS["roberta" if is_roberta else "bert"]
    words = (*specials, *WORDS, *"abcdefghijklmnopqrstuvwxyz.,!?"[1:])
    vocab = {word: i for i, word in enumerate(dict.fromkeys(words))}
    assert len(vocab) <= VOCAB
    inner = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=specials[3 if is_roberta else 1]))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, last = (specials[0], specials[2]) if is_roberta else (specials[2], specials[3])
    inner.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} {last} $B {last}" if is_roberta else f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(first, vocab[first]), (last, vocab[last])],
    )
    inner.add_special_tokens(list(specials))
    directory.mkdir(parents=True, exist_ok=True)
    inner.save(str(directory / "tokenizer.json"))
    return directory


def write_model(directory: Path, spec: ModelSpec, seed: int = 0) -> Path:
    """A whole random model directory for `spec`."""
    tokenizer = write_tokenizer(directory.parent / f"{directory.name}-tokenizer", spec.family)
    precision = "F16" if spec.precision == "F16" else "F32"
    return save_checkpoint(directory, spec, random_tensors(spec, seed), precision, tokenizer)


def random_ids(spec: ModelSpec, n_tokens: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Token ids (no special or padding token among them) and types of two halves, zeros without types."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, spec.vocab, n_tokens).astype(np.int32)
    types = (np.arange(n_tokens) >= n_tokens // 2).astype(np.int32)
    return ids, types if spec.n_types > 1 else np.zeros_like(types)
