"""Every family against transformers: the tensors we read, and the order we combine them in, are theirs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.models.examples import read_examples
from pliant.models.hf.checkpoint import open_checkpoint, save_checkpoint
from pliant.models.spec import Family, Head, ModelSpec, tensor_shapes
from pliant.models.tokenizer import open_tokenizer
from tests.reference_model import encode, run_model
from tests.tiny import FAMILIES, random_ids, random_tensors, tiny_spec, write_model, write_tokenizer

torch = pytest.importorskip("torch", reason="transformers needs torch")
transformers = pytest.importorskip("transformers", reason="the reference implementation is not installed")

CLASSES = {"bert": "Bert", "distilbert": "DistilBert", "roberta": "Roberta", "electra": "Electra"}
# The issue asks for logits within 1e-4 in float32; ours are float64, so the difference is all theirs.
TOLERANCE = 1e-4


def their_config(family: Family, seed: int) -> Any:
    """A random small configuration, in the family's own key names."""
    rng = np.random.default_rng(seed)
    heads, layers = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    hidden, ffn = heads * 2 * int(rng.integers(2, 9)), heads * int(rng.integers(3, 30))
    act = str(rng.choice(["gelu", "gelu_new", "relu"]))
    shared = {
        "vocab_size": int(rng.integers(64, 90)),
        "max_position_embeddings": int(rng.integers(26, 40)),
        "id2label": {i: f"class {i}" for i in range(int(rng.integers(2, 5)))},
    }
    if family == "distilbert":
        sizes = {"dim": hidden, "n_layers": layers, "n_heads": heads, "hidden_dim": ffn, "activation": act}
    else:
        sizes = {
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": ffn,
            "hidden_act": act,
        }
    if family == "electra":
        sizes["embedding_size"] = hidden if seed % 3 == 0 else int(rng.integers(5, 40))
    if family == "roberta":
        sizes |= {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
    return getattr(transformers, CLASSES[family] + "Config")(**shared, **sizes)


def their_model(family: Family, head: str, config: Any, seed: int) -> Any:
    """A model of `config` whose weights are large enough that every term of the forward pass matters."""
    model = getattr(transformers, CLASSES[family] + head)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, values in model.named_parameters():
            noise = torch.randn(values.shape, generator=generator)
            values.copy_(1 + 0.1 * noise if name.endswith("LayerNorm.weight") else 0.4 * noise)
    return model


def ours(directory: Path) -> tuple[ModelSpec, dict[str, np.ndarray]]:
    checkpoint = open_checkpoint(directory)
    spec = checkpoint.spec
    return spec, {name: checkpoint.tensor(name) for name, _ in tensor_shapes(spec)}


def theirs(model: Any, spec: ModelSpec, ids: np.ndarray, types: np.ndarray) -> Any:
    inputs = {"input_ids": torch.from_numpy(ids[None].astype(np.int64))}
    if spec.n_types:
        inputs["token_type_ids"] = torch.from_numpy(types[None].astype(np.int64))
    with torch.no_grad():
        return model(**inputs)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_classifier_equal_those_of_transformers(
    family: Family, seed: int, tmp_path: Path
) -> None:
    """The one promise of the models room: nothing of a family's arithmetic was misread."""
    model = their_model(family, "ForSequenceClassification", their_config(family, seed), seed)
    model.save_pretrained(tmp_path)
    spec, tensors = ours(tmp_path)
    assert spec.head.labels == tuple(model.config.id2label.values())
    for n_tokens in (1, 2, spec.max_tokens):
        ids, types = random_ids(spec, n_tokens, seed)
        expected = theirs(model, spec, ids, types).logits[0].numpy()
        assert np.abs(run_model(spec, tensors, ids, types) - expected).max() < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bare_encoder_is_read_without_a_prefix_and_pooled_by_the_mean(
    family: Family, tmp_path: Path
) -> None:
    """Encoders on the hub have no prefix and no head, and sentence-transformers takes their mean."""
    model = their_model(family, "Model", their_config(family, 7), 7)
    model.save_pretrained(tmp_path)
    spec, tensors = ours(tmp_path)
    assert (spec.head.pooling, spec.head.labels, spec.head.is_normalized) == ("mean", None, False)
    ids, types = random_ids(spec, 9)
    expected = theirs(model, spec, ids, types).last_hidden_state[0].numpy()
    assert np.abs(encode(spec, tensors, ids, types) - expected).max() < TOLERANCE
    assert np.abs(run_model(spec, tensors, ids, types) - expected.mean(0)).max() < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_what_we_write_transformers_reads(family: Family, tmp_path: Path) -> None:
    """A stretched model must stay usable elsewhere; a wrong name would be newly initialised there."""
    spec = tiny_spec(family)
    write_model(tmp_path / "model", spec)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    ids, types = random_ids(spec, 11)
    expected = theirs(model, spec, ids, types).logits[0].numpy()
    assert np.abs(run_model(spec, random_tensors(spec), ids, types) - expected).max() < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_of_sentences_and_pairs_equal_those_of_transformers(family: Family, tmp_path: Path) -> None:
    """Pairs carry types for BERT and ELECTRA and none for RoBERTa and DistilBERT, as each was trained."""
    spec = tiny_spec(family)
    write_tokenizer(tmp_path, family)
    tokenizer = open_tokenizer(tmp_path, spec)
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text, pair in (("A good film", None), ("it was not bad!", "the plot: no story"), ("zebra", "a b c")):
        expected = reference(text, pair, return_token_type_ids=True)
        encoded = tokenizer.encode(text, pair)
        assert encoded.ids.tolist() == expected["input_ids"]
        has_types = family in ("bert", "electra")
        assert encoded.types.tolist() == (expected["token_type_ids"] if has_types else [0] * len(encoded.ids))


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float16, "F16"), (torch.bfloat16, "BF16")])
def test_half_precision_weights_are_read_exactly(dtype: Any, precision: str, tmp_path: Path) -> None:
    """Full fidelity is the checkpoint's own precision, so reading must not round."""
    model = their_model("bert", "ForSequenceClassification", their_config("bert", 3), 3).to(dtype)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.spec.precision == precision
    for name, expected in (
        ("embeddings.word", model.bert.embeddings.word_embeddings.weight),
        ("layers.0.up.weight", model.bert.encoder.layer[0].intermediate.dense.weight),
        ("head.classifier.bias", model.classifier.bias),
    ):
        assert np.array_equal(checkpoint.tensor(name), expected.detach().float().numpy())


def test_sharded_weights_read_like_one_file(tmp_path: Path) -> None:
    """Large models come in several files behind an index."""
    model = their_model("bert", "ForSequenceClassification", their_config("bert", 5), 5)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="4KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    one, many = ours(tmp_path / "one"), ours(tmp_path / "many")
    assert one[0] == many[0]
    assert all(np.array_equal(one[1][name], many[1][name]) for name in one[1])


def test_the_real_minilm_embeds_as_sentence_transformers_does(minilm: Path) -> None:
    """Random models prove the arithmetic, real weights prove the files: tokenizer, pooling, normalisation."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    texts = ["A charming and often affecting journey.", "Naïve café — 12,000 spam@example.com!?", "no"]
    expected = sentence_transformers.SentenceTransformer(str(minilm), device="cpu").encode(texts)
    spec, tensors = ours(minilm)
    tokenizer = open_tokenizer(minilm, spec)
    for text, vector in zip(texts, expected, strict=True):
        encoded = tokenizer.encode(text)
        assert np.abs(run_model(spec, tensors, encoded.ids, encoded.types) - vector).max() < 1e-5


def test_real_sentences_and_pairs_tokenize_as_in_transformers(minilm: Path, data: Path) -> None:
    """Whatever people write (quotes, accents, numbers) must become the tokens the model was trained on."""
    tokenizer = open_tokenizer(minilm, open_checkpoint(minilm).spec)
    reference = transformers.AutoTokenizer.from_pretrained(minilm)
    for file in ("rte/dev.tsv", "mrpc/msr_paraphrase_test.txt"):
        labels = ("entailment", "not_entailment")
        for example in read_examples(data / file, labels)[:150]:
            expected = reference(example.text, example.pair)
            encoded = tokenizer.encode(example.text, example.pair)
            assert encoded.ids.tolist() == expected["input_ids"]
            assert encoded.types.tolist() == expected["token_type_ids"]


def test_a_classifier_of_the_mean_needs_no_dense_layer(tmp_path: Path) -> None:
    """Stretched models classify the mean of the tokens; transformers has no such BERT, so by hand."""
    spec = tiny_spec(head=Head("mean", None, ("a", "b", "c")))
    tensors = random_tensors(spec)
    save_checkpoint(tmp_path / "m", spec, tensors, "F32", write_tokenizer(tmp_path / "t"))
    read_spec, read = ours(tmp_path / "m")
    assert read_spec == spec
    ids, types = random_ids(spec, 6)
    mean = encode(spec, tensors, ids, types).mean(0)
    expected = tensors["head.classifier.weight"].astype(np.float64) @ mean + tensors["head.classifier.bias"]
    assert np.allclose(run_model(read_spec, read, ids, types), expected, rtol=0, atol=1e-12)
