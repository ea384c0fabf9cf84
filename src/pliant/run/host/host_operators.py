"""ONNX operators in numpy, for the steps between executables."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from pliant.errors import InputError
from pliant.ir.graph import Node
from pliant.models.onnx.bind.onnx_fold import reference
from pliant.models.onnx.onnx_nodes import node_of
from pliant.profile.system_memory import machine_bytes
from pliant.run.host.non_max_suppression import non_max_suppression
from pliant.run.host.sequence_operators import SEQUENCES

HostFunction = Callable[[Sequence[Any]], Sequence[Any]]
"""Maps a node's inputs to its outputs: arrays, lists of arrays, or None for an absent value."""


def host_function(node: Any, opsets: Mapping[str, int]) -> HostFunction:
    """The function that runs a node. It raises ValueError, IndexError or TypeError for invalid data."""
    written = SEQUENCES.get(node.op_type) or _operator(node)
    if written is not None:
        return partial(written, node=node_of(node))
    evaluate = reference(node, opsets)
    return lambda inputs: evaluate(dict(zip(node.input, inputs, strict=True)))


def with_input_errors(run: HostFunction, node: Any, where: str) -> HostFunction:
    """`run` with its errors turned into an InputError that names the node and its inputs."""

    def run_checked(inputs: Sequence[Any]) -> Sequence[Any]:
        try:
            return run(inputs)
        except (ValueError, IndexError, TypeError, OverflowError, MemoryError) as error:
            shown = ", ".join(f"{x}: {_shown(v)}" for x, v in zip(node.input, inputs, strict=False) if x)
            raise InputError(f"{where} cannot run on its inputs ({shown}): {error}.") from error

    return run_checked


def _operator(node: Any) -> Callable[..., Sequence[Any]] | None:
    """The operator in this module; None if the node has the attributes of an older version."""
    if len(node.input) < _LEAST_INPUTS.get(node.op_type, 0):
        return None
    return _OPERATORS.get(node.op_type)


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return "none" if value is None else f"a sequence of {len(value)}"


def _check_memory(shape: Sequence[int], dtype: np.dtype) -> None:
    """Raise ValueError if the data call for a tensor larger than the machine's memory."""
    wanted, there = prod(shape) * dtype.itemsize, machine_bytes()
    if wanted > there:
        raise ValueError(
            f"its output would take {wanted / 1e9:.1f} GB; this machine has {there / 1e9:.1f} GB"
        )


def _given(inputs: Sequence[Any], i: int) -> Any:
    return inputs[i] if i < len(inputs) else None


def _non_zero(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    return (np.stack(np.nonzero(np.atleast_1d(inputs[0]))).astype(np.int64),)


def _unique(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    axis = node.integer("axis", None)
    values, first, inverse, counts = np.unique(
        inputs[0], return_index=True, return_inverse=True, return_counts=True, axis=axis, equal_nan=False
    )
    inverse = inverse.reshape(-1)
    if not node.flag("sorted", True):
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return (values, *(x.astype(np.int64) for x in (first, inverse, counts)))[: len(node.outputs)]


def _compress(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    return (np.compress(inputs[1], inputs[0], axis=node.integer("axis", None)),)


def _reshape(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    x, wanted = inputs
    keeps = not node.flag("allowzero")
    return (x.reshape([x.shape[i] if keeps and not d else d for i, d in enumerate(wanted.tolist())]),)


def _expand(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    x, wanted = inputs
    shape = np.broadcast_shapes(x.shape, tuple(wanted.tolist()))
    _check_memory(shape, x.dtype)
    return (np.broadcast_to(x, shape),)


def _slice(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    x = inputs[0]
    starts, ends = inputs[1].tolist(), inputs[2].tolist()
    axes, steps = _given(inputs, 3), _given(inputs, 4)
    cuts = [slice(None)] * x.ndim
    for i, axis in enumerate(range(len(starts)) if axes is None else axes.tolist()):
        cuts[axis] = slice(starts[i], ends[i], 1 if steps is None else int(steps[i]))
    return (x[tuple(cuts)],)


def _range(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    start, limit, delta = (x.reshape(()) for x in inputs)
    count = max(int(np.ceil((limit.item() - start.item()) / delta.item())), 0) if delta else -1
    if count < 0:
        raise ValueError("its step is 0")
    _check_memory((count,), start.dtype)
    return ((start + delta * np.arange(count)).astype(start.dtype),)


def _constant_of_shape(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    filler = node.array("value", np.zeros(1, np.float32)).reshape(-1)
    shape = tuple(inputs[0].tolist())
    _check_memory(shape, filler.dtype)
    return (np.full(shape, filler[0], filler.dtype),)


def _tile(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    x, repeats = inputs[0], inputs[1].tolist()
    _check_memory((x.size, *repeats), x.dtype)
    return (np.tile(x, tuple(repeats)),)


def _squeeze(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    axes = _given(inputs, 1)
    return (np.squeeze(inputs[0], None if axes is None else tuple(axes.reshape(-1).tolist())),)


def _unsqueeze(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    return (np.expand_dims(inputs[0], tuple(inputs[1].reshape(-1).tolist())),)


def _identity(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    return (inputs[0],)


_OPERATORS: Mapping[str, Callable[..., Sequence[Any]]] = {
    "NonZero": _non_zero,
    "NonMaxSuppression": non_max_suppression,
    "Unique": _unique,
    "Compress": _compress,
    "Reshape": _reshape,
    "Expand": _expand,
    "Slice": _slice,
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
    "Tile": _tile,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Identity": _identity,
}

_LEAST_INPUTS = {"Reshape": 2, "Slice": 3, "Squeeze": 2, "Unsqueeze": 2, "Tile": 2}
"""A node with fewer inputs is of an older version, which has attributes instead."""
