"""Collect the operators of a model that cannot be compiled, so that one error names all of them."""

from collections.abc import Iterable
from typing import Any, final

from pliant.errors import GraphError

CONTROL_FLOW = frozenset(("If", "Loop", "Scan", "SequenceMap"))
_NON_TENSOR = ("sequence", "optional", "string", "splittosequence", "concatfromsequence")


def is_refused(key: str) -> bool:
    """Whether an operator is control flow or deals in what is no tensor: sequences, optionals, text."""
    return key in CONTROL_FLOW or key.lower().startswith(_NON_TENSOR)


@final
class Refused:
    """The operators refused, with their nodes, and the tensors that therefore are never made."""

    def __init__(self) -> None:
        self._lost: set[str] = set()
        self._nodes: dict[str, list[str]] = {}

    def is_lost(self, tensor: str) -> bool:
        return tensor in self._lost

    def lose(self, tensors: Iterable[str]) -> None:
        """What cannot be made because something before it was refused."""
        self._lost |= {y for y in tensors if y}

    def refuse(self, node: Any, key: str, where: str) -> None:
        """Operator `key` has no kernel, nor a function that could stand for it."""
        self.lose(node.output)
        what = f"{key} [control flow]" if key in CONTROL_FLOW else key
        what = f"{key} [not a tensor]" if key.lower().startswith(_NON_TENSOR) else what
        self._nodes.setdefault(what, []).append(where.split("'")[1] if "'" in where else where)

    def check_none(self, source: str) -> None:
        """Raises GraphError naming every operator refused."""
        if self._nodes:
            named = "; ".join(f"{op} (at {_some(at)})" for op, at in sorted(self._nodes.items()))
            raise GraphError(f"{source} holds operators that cannot be compiled: {named}.")


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(n) for n in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
