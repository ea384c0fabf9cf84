"""Every family of encoders against transformers: unsplit, our parts compute what its own modules do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.models.encoder.encoder_directory import open_directory
from pliant.models.encoder.encoder_source import Encoder
from tests.models.encoder_runs import run_encoder

torch = pytest.importorskip("torch", reason="transformers needs torch")
transformers = pytest.importorskip("transformers", reason="the reference implementation is not installed")

# The issue asks for 1e-4; hidden states here are of order 1 to 5, and both sides compute in float32.
TOLERANCE = 1e-4
ROWS = 11

TEXT = {"vocab_size": 31, "max_position_embeddings": 17, "id2label": {0: "a", 1: "b", 2: "c"}}
BERT = {"hidden_size": 21, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 33}
BERT |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DISTILBERT = {"dim": 20, "n_layers": 2, "n_heads": 4, "hidden_dim": 28, "dropout": 0.0}
MOBILEBERT = {
    "hidden_size": 22,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 19,
    "embedding_size": 7,
    "intra_bottleneck_size": 15,
    "num_feedforward_networks": 3,
}
VIT = BERT | {"image_size": 12, "patch_size": 4, "num_channels": 2, "num_labels": 5}
WHISPER = {
    "vocab_size": 11,
    "d_model": 18,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 25,
    "decoder_ffn_dim": 8,
    "max_source_positions": 13,
    "max_target_positions": 4,
    "num_mel_bins": 5,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", TEXT | BERT),
    "bert, tanh approximation": ("Bert", TEXT | BERT | {"hidden_act": "gelu_new"}),
    "distilbert": ("DistilBert", TEXT | DISTILBERT),
    "roberta": ("Roberta", TEXT | BERT | {"type_vocab_size": 1, "pad_token_id": 1}),
    "electra": ("Electra", TEXT | BERT | {"embedding_size": 9}),
    "mobilebert": ("MobileBert", TEXT | MOBILEBERT),
    "mobilebert, layer norms": ("MobileBert", TEXT | MOBILEBERT | {"normalization_type": "layer_norm"}),
    "mobilebert, attention inside": ("MobileBert", TEXT | MOBILEBERT | {"use_bottleneck_attention": True}),
    "mobilebert, queries from outside": (
        "MobileBert",
        TEXT | MOBILEBERT | {"key_query_shared_bottleneck": False, "hidden_size": 15},
    ),
    "mobilebert, no bottleneck": (
        "MobileBert",
        TEXT | MOBILEBERT | {"use_bottleneck": False, "hidden_size": 21, "trigram_input": False},
    ),
    "mobilebert, one feed forward, no dense head": (
        "MobileBert",
        TEXT | MOBILEBERT | {"num_feedforward_networks": 1, "classifier_activation": False},
    ),
    "vit": ("ViT", VIT),
    "vit, no bias, oblong": ("ViT", VIT | {"qkv_bias": False, "image_size": (8, 16), "patch_size": (4, 8)}),
    "whisper": ("Whisper", WHISPER),
}
EVERY_CASE = pytest.mark.parametrize("case", CASES)


def their_model(kind: str, ending: str, settings: dict[str, Any]) -> Any:
    """A model with random weights large enough that every term matters, norms and biases included."""
    config = getattr(transformers, f"{kind}Config")(**settings)
    model = getattr(transformers, kind + ending)(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, values in model.named_parameters():
            noise = torch.randn(values.shape, generator=generator)
            is_norm = "norm" in name.lower() and name.endswith("weight")
            gain = 0.3 if values.ndim < 2 else values[0].numel() ** -0.5
            values.copy_(1 + 0.1 * noise if is_norm else gain * noise)
    return model


def feeds_of(source: Encoder) -> dict[str, np.ndarray]:
    rows = ROWS if source.spec.family not in ("vit", "whisper") else source.spec.max_rows
    feeds = dict(source.sample(rows, seed=3))
    if "ids" in feeds and source.spec.family in ("bert", "electra", "mobilebert"):
        feeds["types"] = (np.arange(rows) % 3 == 0).astype(np.int32)
    if "ids" in feeds:
        feeds["ids"] = np.maximum(feeds["ids"], 3)  # RoBERTa counts no position for padding
    return feeds


def theirs(model: Any, feeds: dict[str, np.ndarray]) -> Any:
    names = {"ids": "input_ids", "types": "token_type_ids", "pixels": "pixel_values", "mel": "input_features"}
    given = {names[name]: torch.from_numpy(array[None]) for name, array in feeds.items()}
    given = {name: t if t.is_floating_point() else t.long() for name, t in given.items()}
    with torch.no_grad():
        return model(**given)


@EVERY_CASE
def test_hidden_states_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    """Layers, input and final norm, at odd sizes: what a split is held against is right itself."""
    kind, settings = CASES[case]
    model = their_model(kind, "Model", settings)
    model.save_pretrained(tmp_path / "model")
    source = open_directory(tmp_path / "model", tmp_path)
    feeds = feeds_of(source)
    encoder = model.encoder if kind == "Whisper" else model
    wanted = theirs(encoder, feeds).last_hidden_state[0].numpy()
    np.testing.assert_allclose(run_encoder(source, feeds, "hidden"), wanted, atol=TOLERANCE)


@pytest.mark.parametrize("case", [case for case in CASES if case != "whisper"])
def test_logits_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    """Every classifier's head, and its labels in order."""
    kind, settings = CASES[case]
    ending = "ForImageClassification" if kind == "ViT" else "ForSequenceClassification"
    model = their_model(kind, ending, settings)
    model.save_pretrained(tmp_path / "model")
    source = open_directory(tmp_path / "model", tmp_path)
    feeds = feeds_of(source)
    assert source.answers[0] == "logits"
    assert source.labels == tuple(model.config.id2label.values())
    np.testing.assert_allclose(run_encoder(source, feeds), theirs(model, feeds).logits[0], atol=TOLERANCE)


def test_whisper_is_found_inside_a_model_that_writes_text(tmp_path: Path) -> None:
    """Checkpoints hold the decoder as well, and call the encoder model.encoder."""
    model = their_model("Whisper", "ForConditionalGeneration", WHISPER)
    model.save_pretrained(tmp_path / "model")
    source = open_directory(tmp_path / "model", tmp_path)
    feeds = feeds_of(source)
    wanted = theirs(model.model.encoder, feeds).last_hidden_state[0].numpy()
    np.testing.assert_allclose(run_encoder(source, feeds), wanted, atol=TOLERANCE)


def test_half_of_whispers_rows_are_those_of_a_model_with_half_the_positions(tmp_path: Path) -> None:
    """Shorter audio costs less; transformers itself asks for the whole length."""
    model = their_model("Whisper", "Model", WHISPER)
    model.save_pretrained(tmp_path / "long")
    short = their_model("Whisper", "Model", WHISPER | {"max_source_positions": 6}).encoder
    weights = model.encoder.state_dict()
    weights["embed_positions.weight"] = weights["embed_positions.weight"][:6]
    short.load_state_dict(weights)
    source = open_directory(tmp_path / "long", tmp_path)
    feeds = dict(source.sample(6))
    wanted = theirs(short, feeds).last_hidden_state[0].numpy()
    np.testing.assert_allclose(run_encoder(source, feeds), wanted, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", ["bert", "mobilebert"])
def test_half_floats_are_widened_exactly(case: str, dtype: str, tmp_path: Path) -> None:
    """Checkpoints in half precision run in float32, as transformers runs them when told to."""
    kind, settings = CASES[case]
    model = their_model(kind, "Model", settings).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "model")
    source = open_directory(tmp_path / "model", tmp_path)
    feeds = feeds_of(source)
    wanted = theirs(model.float(), feeds).last_hidden_state[0].numpy()
    np.testing.assert_allclose(run_encoder(source, feeds, "hidden"), wanted, atol=TOLERANCE)


def test_a_sharded_checkpoint_is_read_through_its_index(tmp_path: Path) -> None:
    """Large models come in several files."""
    kind, settings = CASES["mobilebert"]
    model = their_model(kind, "Model", settings)
    model.save_pretrained(tmp_path / "model", max_shard_size="9KB")
    assert (tmp_path / "model" / "model.safetensors.index.json").is_file()
    source = open_directory(tmp_path / "model", tmp_path)
    feeds = feeds_of(source)
    wanted = theirs(model, feeds).last_hidden_state[0].numpy()
    np.testing.assert_allclose(run_encoder(source, feeds, "hidden"), wanted, atol=TOLERANCE)


def test_a_real_model_embeds_a_sentence_as_transformers_does(minilm: Path, tmp_path: Path) -> None:
    """Trained weights, its own tokenizer, mean pooling and the unit length that modules.json asks for."""
    source = open_directory(minilm, tmp_path)
    feeds = source.read("a charming and often affecting journey")
    model = transformers.AutoModel.from_pretrained(minilm).eval()
    mean = theirs(model, dict(feeds)).last_hidden_state[0].numpy().mean(axis=0)
    np.testing.assert_allclose(run_encoder(source, feeds), mean / np.linalg.norm(mean), atol=1e-5)
