"""The names of weights in Hugging Face checkpoints, per family."""

from collections.abc import Collection

from pliant.models.spec import Family

_BERT_LAYER = {
    "query": "encoder.layer.{}.attention.self.query",
    "key": "encoder.layer.{}.attention.self.key",
    "value": "encoder.layer.{}.attention.self.value",
    "output": "encoder.layer.{}.attention.output.dense",
    "attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "up": "encoder.layer.{}.intermediate.dense",
    "down": "encoder.layer.{}.output.dense",
    "output_norm": "encoder.layer.{}.output.LayerNorm",
}
_DISTILBERT_LAYER = {
    "query": "transformer.layer.{}.attention.q_lin",
    "key": "transformer.layer.{}.attention.k_lin",
    "value": "transformer.layer.{}.attention.v_lin",
    "output": "transformer.layer.{}.attention.out_lin",
    "attention_norm": "transformer.layer.{}.sa_layer_norm",
    "up": "transformer.layer.{}.ffn.lin1",
    "down": "transformer.layer.{}.ffn.lin2",
    "output_norm": "transformer.layer.{}.output_layer_norm",
}
_LAYER: dict[Family, dict[str, str]] = {
    "bert": _BERT_LAYER,
    "distilbert": _DISTILBERT_LAYER,
    "roberta": _BERT_LAYER,
    "electra": _BERT_LAYER,
}
_TABLES = {
    "embeddings.word": "embeddings.word_embeddings.weight",
    "embeddings.position": "embeddings.position_embeddings.weight",
    "embeddings.type": "embeddings.token_type_embeddings.weight",
}
_EMBEDDINGS = {
    "embeddings.norm": "embeddings.LayerNorm",
    "embeddings.project": "embeddings_project",
}
# Whether the dense layer of the head belongs to the encoder decides whether it carries the prefix.
_HEAD: dict[Family, dict[str, str]] = {
    "bert": {"head.dense": "bert.pooler.dense", "head.classifier": "classifier"},
    "distilbert": {"head.dense": "pre_classifier", "head.classifier": "classifier"},
    "roberta": {"head.dense": "classifier.dense", "head.classifier": "classifier.out_proj"},
    "electra": {"head.dense": "classifier.dense", "head.classifier": "classifier.out_proj"},
}
_PREFIX: dict[Family, str] = {
    "bert": "bert.",
    "distilbert": "distilbert.",
    "roberta": "roberta.",
    "electra": "electra.",
}


def saved_name(family: Family, canonical: str) -> str:
    """The name a `...ForSequenceClassification` checkpoint of `family` gives the tensor `canonical`.

    `canonical` is a name of `spec.tensor_shapes`; any other is a KeyError, our own mistake.
    """
    if canonical in _TABLES:
        return _PREFIX[family] + _TABLES[canonical]
    stem, _, kind = canonical.rpartition(".")
    if stem in _HEAD[family]:
        return f"{_HEAD[family][stem]}.{kind}"
    return f"{_PREFIX[family]}{_encoder_stem(family, stem)}.{kind}"


def saved_names(family: Family, canonical: str) -> tuple[str, ...]:
    """All names that a checkpoint of `family` may give the tensor `canonical`, the likeliest first.

    Encoders are saved with or without the family's prefix, and checkpoints converted from TensorFlow
    call a layer norm's weight and bias gamma and beta.
    """
    with_prefix = saved_name(family, canonical)
    names = []
    for name in (with_prefix, with_prefix.removeprefix(_PREFIX[family])):
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        names += [name, old]
    return tuple(dict.fromkeys(names))


def find_name(family: Family, canonical: str, present: Collection[str]) -> str | None:
    """The name among `present` in a checkpoint that holds the tensor `canonical`; None if there is none."""
    return next((name for name in saved_names(family, canonical) if name in present), None)


def _encoder_stem(family: Family, stem: str) -> str:
    if stem in _EMBEDDINGS:
        return _EMBEDDINGS[stem]
    _, layer, part = stem.split(".")
    return _LAYER[family][part].format(layer)
