"""Read and write the config.json of a BERT-family model. The precision is F32 until weights are read.

A directory of sentence-transformers adds modules.json and the pooling's own config.json. config.json may have
three keys of pliant: `pliant_widths` and `pliant_depths` (trained numbers of slices and of layers) and
`pliant_dense` (the activation of the head's dense layer, null for none, absent for the family's default).
`classifier_pooling` is ModernBERT's.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pliant.errors import ModelError
from pliant.models.hf.encoder_flags import LANGUAGE_MODELS, EncoderFlags, is_classifier, refuse_unsupported
from pliant.models.hf.weight_names import find_name
from pliant.models.spec import Activation, Family, Head, ModelSpec, Pooling

TEXT_FAMILIES: dict[str, Family] = {
    "bert": "bert",
    "distilbert": "distilbert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "electra": "electra",
}
_ACTIVATION: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
}
_HF_ACTIVATION: dict[Activation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "relu": "relu",
    "tanh": "tanh",
}
_FAMILY_DENSE: dict[Family, Activation] = {
    "bert": "tanh",
    "distilbert": "relu",
    "roberta": "tanh",
    "electra": "gelu",
}
_CLASS_STEM: dict[Family, str] = {
    "bert": "Bert",
    "distilbert": "DistilBert",
    "roberta": "Roberta",
    "electra": "Electra",
}
_CLASSIFIER = "ForSequenceClassification"


class _ModelTypeConfig(msgspec.Struct):
    model_type: str


class _ArchitecturesConfig(msgspec.Struct):
    architectures: list[str] | None = None


class _ModuleEntry(msgspec.Struct):
    type: str
    path: str = ""


class _PoolingModes(msgspec.Struct):
    """1_Pooling/config.json; later versions write one `pooling_mode`, earlier ones a flag per mode."""

    pooling_mode: str | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False


class _CommonConfig(EncoderFlags, kw_only=True):
    model_type: str
    vocab_size: int
    max_position_embeddings: int
    classifier_pooling: str | None = None
    pliant_widths: list[int] | None = None
    pliant_depths: list[int] | None = None
    pliant_dense: str | msgspec.UnsetType | None = msgspec.UNSET


class _BertConfig(_CommonConfig, kw_only=True):
    """BERT, RoBERTa and ELECTRA; absent flags have the defaults of transformers."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    embedding_size: int | None = None
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    type_vocab_size: int = 2
    pad_token_id: int | None = None


class _DistilBertConfig(_CommonConfig, kw_only=True):
    dim: int
    n_layers: int
    n_heads: int
    hidden_dim: int
    activation: str = "gelu"


def read_config(directory: Path, tensor_names: Collection[str]) -> ModelSpec:
    """The spec that config.json declares; `precision` is F32 until the weights are seen.

    `tensor_names` decide the head only where config.json names no architecture. Raises ModelError
    naming the file and the key for anything missing, mistyped or not supported.
    """
    return read_config_file(directory / "config.json", tensor_names)


def read_config_file(path: Path, tensor_names: Collection[str]) -> ModelSpec:
    """As `read_config`, from a file of any name."""
    kind = model_type(path)
    if (family := TEXT_FAMILIES.get(kind)) is None:
        raise ModelError(
            f"{path}: model_type {kind!r} is not supported; pliant runs {', '.join(TEXT_FAMILIES)}."
        )
    keys = _DistilBertConfig if family == "distilbert" else _BertConfig
    config: _BertConfig | _DistilBertConfig = read_json(path, keys)
    refuse_unsupported(path, config)
    try:
        head = _head(path.parent, family, config, tensor_names)
        return _spec(path, family, config, head)
    except ModelError as e:
        if str(path.parent) in str(e):
            raise
        raise ModelError(f"{path}: {e}") from e


def ignored_head(directory: Path) -> str | None:
    """The class in config.json whose head is ignored; None for no such class, and for an embedding model
    (modules.json). Raises ModelError.
    """
    if (directory / "modules.json").is_file():
        return None
    classes: list[str] = read_json(directory / "config.json", _ArchitecturesConfig).architectures or []
    return next((name for name in classes if name.endswith(LANGUAGE_MODELS)), None)


def write_config(spec: ModelSpec, dtype: str) -> dict[str, Any]:
    """The config.json of `spec` as `read_config` and transformers read it; `dtype` is torch's name."""
    is_classifier = spec.head.labels is not None
    config: dict[str, Any] = {
        "model_type": spec.family,
        "architectures": [_CLASS_STEM[spec.family] + (_CLASSIFIER if is_classifier else "Model")],
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.max_tokens + spec.position_offset,
        "dtype": dtype,
        "pliant_widths": list(spec.widths),
    }
    if spec.depths is not None:
        config["pliant_depths"] = list(spec.depths)
    if spec.head.labels is not None:
        config["id2label"] = {str(i): name for i, name in enumerate(spec.head.labels)}
        config["label2id"] = {name: i for i, name in enumerate(spec.head.labels)}
        config["classifier_pooling"] = spec.head.pooling
        config["pliant_dense"] = None if spec.head.dense is None else _HF_ACTIVATION[spec.head.dense]
    return config | _dimensions(spec)


def write_pooling(head: Head, width: int) -> dict[str, Any]:
    """The files of a sentence-transformers directory that define an embedding head's pooling: path ->
    JSON.
    """
    kinds = ["Transformer", "Pooling"] + (["Normalize"] if head.is_normalized else [])
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if i == 0 else f"{i}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    pooling = {
        "word_embedding_dimension": width,
        "pooling_mode_cls_token": head.pooling == "cls",
        "pooling_mode_mean_tokens": head.pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    return {"modules.json": modules, "1_Pooling/config.json": pooling}


def embedding_head(directory: Path) -> Head:
    """The head that sentence-transformers would use for the directory: without modules.json, the plain
    mean.
    """
    path = directory / "modules.json"
    if not path.is_file():
        return Head("mean", None, None)
    modules = [(m.type.rsplit(".", 1)[-1], m.path) for m in read_json(path, list[_ModuleEntry])]
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(
            f"{path}: the modules {' > '.join(kinds)} are not supported; "
            "pliant runs Transformer > Pooling, with or without Normalize."
        )
    return Head(_pooling(directory / modules[1][1] / "config.json"), None, None, "Normalize" in kinds)


def module_files(directory: Path) -> tuple[Path, ...]:
    """modules.json of a sentence-transformers directory and its modules' configurations, where present.

    Raises ModelError for a damaged modules.json.
    """
    path = directory / "modules.json"
    if not path.is_file():
        return ()
    modules: list[_ModuleEntry] = read_json(path, list[_ModuleEntry])
    configs = [directory / module.path / "config.json" for module in modules if module.path]
    return (path, *(config for config in configs if config.is_file()))


def model_type(path: Path) -> str:
    """The model type in a configuration. Raises ModelError when the file or the key is missing."""
    if not path.is_file():
        raise ModelError(
            f"{path} is missing; a model directory holds config.json, safetensors and tokenizer.json."
        )
    kind: str = read_json(path, _ModelTypeConfig).model_type
    return kind


def read_json(path: Path, kind: Any) -> Any:
    """The file as a value of the msgspec type `kind`. Raises ModelError naming the file and the key."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as e:
        raise ModelError(f"{path} cannot be used: {e}.") from e


def activation_of(path: Path, name: str) -> Activation:
    """Hugging Face's name of an activation as an `Activation`. Raises ModelError for an unsupported one."""
    if name not in _ACTIVATION:
        raise ModelError(
            f"{path}: activation {name!r} is not supported; pliant runs {', '.join(_ACTIVATION)}."
        )
    return _ACTIVATION[name]


def _spec(path: Path, family: Family, config: _BertConfig | _DistilBertConfig, head: Head) -> ModelSpec:
    if isinstance(config, _DistilBertConfig):
        layers, heads, hidden, ffn = config.n_layers, config.n_heads, config.dim, config.hidden_dim
        embedding, act, eps, n_types, offset = hidden, config.activation, 1e-12, 0, 0
    else:
        layers, heads = config.num_hidden_layers, config.num_attention_heads
        hidden, ffn = config.hidden_size, config.intermediate_size
        # Only ELECTRA has a factored embedding; the other families ignore the key.
        embedding = (config.embedding_size or 128) if family == "electra" else hidden
        act, eps, n_types = config.hidden_act, config.layer_norm_eps, config.type_vocab_size
        offset = _position_offset(config) if family == "roberta" else 0
    return ModelSpec(
        family=family,
        n_layers=layers,
        n_heads=heads,
        hidden=hidden,
        ffn=ffn,
        embedding=embedding,
        vocab=config.vocab_size,
        max_tokens=config.max_position_embeddings - offset,
        position_offset=offset,
        n_types=n_types,
        activation=activation_of(path, act),
        norm_eps=eps,
        head=head,
        widths=(heads,) if config.pliant_widths is None else tuple(config.pliant_widths),
        precision="F32",
        depths=None if config.pliant_depths is None else tuple(config.pliant_depths),
    )


def _position_offset(config: _BertConfig) -> int:
    """RoBERTa numbers positions from the padding token's id plus one."""
    return (1 if config.pad_token_id is None else config.pad_token_id) + 1


def _head(directory: Path, family: Family, config: _CommonConfig, tensor_names: Collection[str]) -> Head:
    has_weights = find_name(family, "head.classifier.weight", tensor_names) is not None
    if is_classifier(config, _CLASSIFIER, has_weights):
        return _classifier(family, config)
    return embedding_head(directory)


def _classifier(family: Family, config: _CommonConfig) -> Head:
    pooling = config.classifier_pooling or "cls"
    if pooling not in ("cls", "mean"):
        raise ModelError(f"classifier_pooling {pooling!r} is not supported; it is 'cls' or 'mean'.")
    dense: Activation | None
    if isinstance(config.pliant_dense, msgspec.UnsetType):
        dense = _FAMILY_DENSE[family]
    elif config.pliant_dense is None:
        dense = None
    elif config.pliant_dense in _ACTIVATION:
        dense = _ACTIVATION[config.pliant_dense]
    else:
        raise ModelError(f"pliant_dense {config.pliant_dense!r} is none of {', '.join(_ACTIVATION)} or null.")
    return Head("cls" if pooling == "cls" else "mean", dense, label_names(config.id2label, config.num_labels))


def label_names(named: Mapping[str, str] | None, num_labels: int | None) -> tuple[str, ...]:
    """Label names in order of the classifier's rows, from `id2label` and `num_labels`.

    Without id2label they are LABEL_0, LABEL_1, ... as in transformers. Raises ModelError if the two disagree.
    """
    if named is None:
        n = 2 if num_labels is None else num_labels
        if not 1 <= n <= 1_000_000:
            raise ModelError(f"num_labels is {n}, but a classifier has at least 1.")
        return tuple(f"LABEL_{i}" for i in range(n))
    if not named or set(named) != {str(i) for i in range(len(named))}:
        raise ModelError(
            f"id2label names {sorted(named)}, but its keys must be 0 to the number of labels - 1."
        )
    if num_labels not in (None, len(named)):
        raise ModelError(f"num_labels is {num_labels}, but id2label names {len(named)} labels.")
    return tuple(named[str(i)] for i in range(len(named)))


def _pooling(path: Path) -> Pooling:
    config: _PoolingModes = read_json(path, _PoolingModes)
    flags = {
        "cls": config.pooling_mode_cls_token,
        "mean": config.pooling_mode_mean_tokens,
        "max": config.pooling_mode_max_tokens,
        "mean_sqrt_len_tokens": config.pooling_mode_mean_sqrt_len_tokens,
        "weightedmean": config.pooling_mode_weightedmean_tokens,
        "lasttoken": config.pooling_mode_lasttoken,
    }
    modes = (
        [config.pooling_mode] if config.pooling_mode else [mode for mode, is_set in flags.items() if is_set]
    )
    if modes == ["cls"]:
        return "cls"
    if modes == ["mean"]:
        return "mean"
    raise ModelError(
        f"{path}: pooling by {' + '.join(modes) or 'nothing'} is not supported; it is cls or mean."
    )


def _dimensions(spec: ModelSpec) -> dict[str, Any]:
    act = _HF_ACTIVATION[spec.activation]
    if spec.family == "distilbert":
        return {
            "dim": spec.hidden,
            "n_layers": spec.n_layers,
            "n_heads": spec.n_heads,
            "hidden_dim": spec.ffn,
            "activation": act,
        }
    config: dict[str, Any] = {
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": spec.n_heads,
        "intermediate_size": spec.ffn,
        "hidden_act": act,
        "layer_norm_eps": spec.norm_eps,
        "type_vocab_size": spec.n_types,
    }
    if spec.family == "electra":
        config["embedding_size"] = spec.embedding
    if spec.family == "roberta":
        config["pad_token_id"] = spec.position_offset - 1
    return config
