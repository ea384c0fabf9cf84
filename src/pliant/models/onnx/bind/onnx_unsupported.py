"""Collect the unsupported operators of a model, so that one error names all of them."""

from collections.abc import Iterable
from typing import Any, final

from pliant.errors import GraphError
from pliant.models.onnx.bind.onnx_blocks import shorten_list


@final
class UnsupportedOperators:
    """The operators refused, with their nodes, and the tensors that therefore are never made."""

    def __init__(self) -> None:
        self._lost: set[str] = set()
        self._nodes: dict[str, list[str]] = {}

    def is_lost(self, tensor: str) -> bool:
        return tensor in self._lost

    def mark_lost(self, tensors: Iterable[str]) -> None:
        """Record tensors that cannot be made because an earlier node was refused."""
        self._lost |= {y for y in tensors if y}

    def refuse(self, node: Any, key: str, where: str) -> None:
        """Record that operator `key` has no kernel and no function that could replace it."""
        self.mark_lost(node.output)
        self._nodes.setdefault(key, []).append(where.split("'")[1] if "'" in where else where)

    def check_none(self, source: str) -> None:
        """Raises GraphError naming every operator refused."""
        if self._nodes:
            named = "; ".join(f"{op} (at {shorten_list(at)})" for op, at in sorted(self._nodes.items()))
            raise GraphError(f"{source} holds operators that cannot be compiled: {named}.")
