"""ONNX operators on sequences (Python lists here) and on optional values (None if absent)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pliant.ir.graph import Node


def _construct(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    return (list(inputs),)


def _empty(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    return ([],)


def _insert(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    sequence, value, *at = inputs
    place = int(at[0].item()) if at and at[0] is not None else len(sequence)
    if not -len(sequence) <= place <= len(sequence):
        raise IndexError(f"position {place} is outside a sequence of {len(sequence)}")
    place += len(sequence) if place < 0 else 0
    return ([*sequence[:place], value, *sequence[place:]],)


def _erase(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    sequence = list(inputs[0])
    del sequence[_place(inputs, len(sequence) - 1)]
    return (sequence,)


def _at(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    return (inputs[0][_place(inputs, 0)],)


def _place(inputs: Sequence[Any], otherwise: int) -> int:
    place = int(inputs[1].item()) if len(inputs) > 1 and inputs[1] is not None else otherwise
    if not -len(inputs[0]) <= place < len(inputs[0]):
        raise IndexError(f"position {place} is outside a sequence of {len(inputs[0])}")
    return place


def _length(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    return (np.array(len(inputs[0]), np.int64),)


def _split(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    x, axis = inputs[0], node.integer("axis", 0)
    given = inputs[1] if len(inputs) > 1 else None
    size = x.shape[axis]
    if given is None:
        parts = np.split(x, size, axis) if size else []
        return ([p if node.flag("keepdims", True) else p.squeeze(axis) for p in parts],)
    lengths = given.reshape(-1).tolist()
    if given.ndim == 0:
        if lengths[0] < 1:
            raise ValueError(f"it cannot be split into parts of {lengths[0]}")
        return (list(np.split(x, range(lengths[0], size, lengths[0]), axis)),)
    if sum(lengths) != size or min(lengths, default=0) < 0:
        raise ValueError(f"its axis {axis} is {size} long, which is not {lengths}")
    return (list(np.split(x, np.cumsum(lengths)[:-1], axis)),)


def _concat(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    join = np.stack if node.flag("new_axis") else np.concatenate
    return (join(inputs[0], node.integer("axis", 0)),)


def _same(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    return (inputs[0] if inputs else None,)


def _has_element(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    return (np.array(bool(inputs) and inputs[0] is not None),)


def _element(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    if inputs[0] is None:
        raise ValueError("the optional value is absent")
    return (inputs[0],)


SEQUENCES: Mapping[str, Callable[..., Sequence[Any]]] = {
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": _length,
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
    "Optional": _same,
    "OptionalHasElement": _has_element,
    "OptionalGetElement": _element,
}
"""Functions from a node's inputs, and the node for its attributes, to its outputs."""
