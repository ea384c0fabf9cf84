"""A recurrent model's specification, and the config.json that holds it."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec

from pliant.errors import ModelError
from pliant.models.hf.config import model_type, read_json

RecurrentCell = Literal["lstm", "gru"]
StatePooling = Literal["last", "max", "mean"]
"""How all states become one vector: the final state of each direction, or the maximum or mean of each
unit.
"""

MODEL_TYPE = "recurrent"
MAX_TOKENS = 1 << 14
"""Longer inputs are refused: a layer keeps the sums of all its steps, 20 MB at 300 units in both
directions.
"""

GATES: dict[RecurrentCell, int] = {"lstm": 4, "gru": 3}
EMBEDDING, CLASSIFIER = "embedding.weight", "classifier"


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """Words -> vectors -> `n_layers` layers of `hidden` units -> pooled -> a logit for each label.

    Without `labels` the pooled vector is the answer. Raises ModelError for invalid sizes.
    """

    cell: RecurrentCell
    vocab: int
    inputs: int
    hidden: int
    n_layers: int = 1
    is_bidirectional: bool = False
    pooling: tuple[StatePooling, ...] = ("last",)
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("vocab", "inputs", "hidden", "n_layers"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} is {getattr(self, name)}; a recurrent model has at least 1.")
        if not self.pooling or len(set(self.pooling)) < len(self.pooling):
            raise ModelError(
                f"pooling is {list(self.pooling)}; give some of {get_args(StatePooling)}, each once."
            )
        if self.labels is not None and len(self.labels) < 2:
            raise ModelError(f"a classifier needs 2 labels or more, but id2label has {len(self.labels)}.")

    @property
    def directions(self) -> int:
        return 1 + self.is_bidirectional

    @property
    def width(self) -> int:
        """Units of a step's state, both directions concatenated."""
        return self.directions * self.hidden

    @property
    def features(self) -> int:
        """Length of the pooled vector: all poolings concatenated."""
        return len(self.pooling) * self.width

    # The limits for a tokenizer (models/tokenizer.py).
    @property
    def family(self) -> str:
        return MODEL_TYPE

    @property
    def n_types(self) -> int:
        return 1

    @property
    def max_tokens(self) -> int:
        return MAX_TOKENS

    @property
    def position_offset(self) -> int:
        return 0

    def layer_inputs(self, layer: int) -> int:
        """Numbers a layer reads in each step."""
        return self.width if layer else self.inputs

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor, with the names of torch's LSTM and GRU, under `rnn`."""
        rows = GATES[self.cell] * self.hidden
        shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (self.vocab, self.inputs)}
        for layer in range(self.n_layers):
            for direction in range(self.directions):
                end = layer_suffix(layer, direction)
                shapes |= {
                    f"rnn.weight_ih{end}": (rows, self.layer_inputs(layer)),
                    f"rnn.weight_hh{end}": (rows, self.hidden),
                    f"rnn.bias_ih{end}": (rows,),
                    f"rnn.bias_hh{end}": (rows,),
                }
        if self.labels is not None:
            n = len(self.labels)
            shapes |= {f"{CLASSIFIER}.weight": (n, self.features), f"{CLASSIFIER}.bias": (n,)}
        return shapes


def layer_suffix(layer: int, direction: int) -> str:
    """The suffix of a layer's tensor names in torch."""
    return f"_l{layer}" + "_reverse" * direction


class _Config(msgspec.Struct):
    model_type: str
    cell: RecurrentCell
    vocab_size: int
    embedding_size: int
    hidden_size: int
    num_layers: int = 1
    bidirectional: bool = False
    pooling: tuple[StatePooling, ...] = ("last",)
    id2label: dict[str, str] | None = None


def is_recurrent(path: Path) -> bool:
    """Whether a configuration file describes a recurrent model. Raises ModelError without a model type."""
    return model_type(path) == MODEL_TYPE


def read_recurrent(path: Path) -> RecurrentSpec:
    """The spec of a configuration file. Raises ModelError naming file and key."""
    if not is_recurrent(path):
        raise ModelError(f"{path}: model_type {model_type(path)!r} is none of a recurrent model.")
    config: _Config = read_json(path, _Config)
    try:
        return RecurrentSpec(
            cell=config.cell,
            vocab=config.vocab_size,
            inputs=config.embedding_size,
            hidden=config.hidden_size,
            n_layers=config.num_layers,
            is_bidirectional=config.bidirectional,
            pooling=config.pooling,
            labels=None if config.id2label is None else _labels(config.id2label),
        )
    except ModelError as e:
        raise ModelError(f"{path}: {e}") from e


def _labels(id2label: dict[str, str]) -> tuple[str, ...]:
    wanted: Collection[str] = [str(i) for i in range(len(id2label))]
    if set(wanted) != set(id2label):
        raise ModelError(f"id2label has the keys {sorted(id2label)}; they count from 0.")
    return tuple(id2label[i] for i in wanted)
