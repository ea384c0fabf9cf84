"""The keys of config.json that say which variant of a family a model is, and whether pliant runs it."""

from pathlib import Path
from typing import Any

import msgspec

from pliant.errors import ModelError

# Classes whose own head pliant ignores; the rest is an encoder, for embedding or stretching.
LANGUAGE_MODELS = ("ForMaskedLM", "ForPreTraining", "LMHeadModel")
_ENCODERS = ("Model", "ForMaskedImageModeling", *LANGUAGE_MODELS)


class EncoderFlags(msgspec.Struct, kw_only=True):
    """Keys that all families have; absent ones have the defaults of transformers."""

    architectures: list[str] | None = None
    id2label: dict[str, str] | None = None
    num_labels: int | None = None
    problem_type: str | None = None
    position_embedding_type: str | None = None
    is_decoder: bool = False
    is_encoder_decoder: bool = False
    add_cross_attention: bool = False
    pruned_heads: dict[str, Any] | None = None
    quantization_config: Any = None


def refuse_unsupported(path: Path, flags: EncoderFlags) -> None:
    """Raise ModelError naming the file and a key whose value changes what the model computes."""
    refused = {
        "position_embedding_type": flags.position_embedding_type not in (None, "absolute"),
        "is_decoder": flags.is_decoder,
        "is_encoder_decoder": flags.is_encoder_decoder,
        "add_cross_attention": flags.add_cross_attention,
        "pruned_heads": bool(flags.pruned_heads),
        "quantization_config": flags.quantization_config is not None,
        "problem_type": flags.problem_type not in (None, "single_label_classification"),
    }
    for key, is_refused in refused.items():
        if is_refused:
            raise ModelError(
                f"{path}: {key} = {getattr(flags, key)!r} is not supported; use a plain encoder."
            )


def is_classifier(flags: EncoderFlags, ending: str, has_weights: bool) -> bool:
    """Whether the architecture is a classifier, whose name ends in `ending`, not an encoder.

    `has_weights`, of a classifier, decides only where no architecture is named. Raises ModelError for others.
    """
    classes = flags.architectures or []
    if any(name.endswith(ending) for name in classes):
        return True
    for name in classes:
        if not name.endswith(_ENCODERS):
            raise ModelError(
                f"architecture {name!r} is not supported; pliant runs encoders and ...{ending} heads."
            )
    return not classes and has_weights
