"""Hold a session's examples, or what they gave, until the weights are coded for them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from pliant.arrays import Float32
from pliant.compiler.rewrite.coder import InputMoments
from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.run.session.feeds import FeedsLike, convert_feeds
from pliant.run.session.ports import shapes_of


def convert_examples(ports: Sequence[Port], examples: Sequence[FeedsLike]) -> list[Mapping[str, Any]]:
    """The arrays of each example. Raises InputError naming the first whose types or shapes do not fit."""
    converted: list[Mapping[str, Any]] = []
    for i, feeds in enumerate(examples):
        try:
            arrays = convert_feeds(ports, feeds)
            shapes_of(ports, arrays)
        except InputError as error:
            raise InputError(f"example {i} does not fit the model: {error}") from error
        converted.append(arrays)
    return converted


@final
class ExampleMoments:
    """The moments of each matrix, by its digest, measured when they are first needed.

    `measure` holds the examples. All moments come from one measurement, so that a matrix that only a later
    graph has is coded for them too.
    """

    def __init__(self, measure: Callable[[], InputMoments]) -> None:
        self._measure: Callable[[], InputMoments] | None = measure
        self._known: InputMoments | None = None
        self._coded: set[bytes] = set()

    def of(self, digest: bytes) -> Float32[np.ndarray, "K K"] | None:
        """The moments to code this matrix for; None if no example is multiplied with it."""
        if self._known is None and self._measure is not None:
            self._known = self._measure()
        self._coded.add(digest)
        return None if self._known is None else self._known.get(digest)

    def forget(self) -> None:
        """Free the moments, but not the examples: they are measured again when they are needed."""
        self._known = None
        self._coded.clear()

    def free_coded(self) -> None:
        """Free the moments of matrices that were coded, and the examples once they are measured."""
        if self._known is not None:
            self._measure = None
            self._known = {x: a for x, a in self._known.items() if x not in self._coded}
        self._coded.clear()

    def clear(self) -> None:
        """Free the examples and all moments."""
        self._measure, self._known = None, {}
        self._coded.clear()
