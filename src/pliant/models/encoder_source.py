"""What a cluster needs of an encoder: layers, weights by name, its two ends. Knows no split and no device."""

from typing import Protocol

import numpy as np

from pliant.arrays import Float32
from pliant.ir.graph import Graph
from pliant.models.encoder_spec import EncoderSpec


class EncoderSource(Protocol):
    """A transformer encoder whose weights can be read one by one, from any device that holds the model."""

    @property
    def spec(self) -> EncoderSpec:
        """The layers as data."""
        ...

    @property
    def identity(self) -> str:
        """A hash of the content: equal on every device that holds the same model."""
        ...

    def tensor(self, name: str, /) -> Float32[np.ndarray, "..."]:
        """The weight of canonical `name`, perhaps memory-mapped: do not write.

        Raises ModelError naming file and tensor where it cannot be read.
        """
        ...

    def input(self, rows: int, /) -> Graph:
        """What the primary runs first: the model's feeds to `x` float32 [rows, hidden].

        The feeds are `ids` and `types` int32 [rows], or `pixels` float32 [channels, height, width], or `mel`
        float32 [bins, frames]. Raises InputError for rows the model cannot have.
        """
        ...

    def head(self, rows: int, /) -> Graph:
        """What the primary runs last: `x` float32 [rows, hidden] to `answer` float32.

        The answer is logits [labels], or the pooled vector [hidden], or the hidden states [rows, hidden].
        """
        ...
