"""The feed that marks the tokens of texts that were padded to one length."""

from collections.abc import Sequence

import numpy as np

from pliant.arrays import Bool

IS_TOKEN = "texts|is_token"
"""A feed added to the model's own: bool [texts, tokens], True for tokens and False for the padding behind
each text.
"""


def is_token(lengths: Sequence[int], n_tokens: int) -> Bool[np.ndarray, "texts tokens"]:
    """The feed IS_TOKEN for texts of `lengths`, padded to `n_tokens`."""
    found: np.ndarray = np.arange(n_tokens) < np.asarray(lengths)[:, None]
    return found
