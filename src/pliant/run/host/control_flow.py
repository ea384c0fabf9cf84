"""The loop operators of ONNX, with their bodies as functions."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pliant.ir.graph import Node

RunBody = Callable[[Sequence[Any]], Sequence[Any]]
"""A body's outputs, from its inputs."""

Empty = Callable[[], np.ndarray]
"""Makes the value of a stacked output of a body that never ran."""


def loop(
    inputs: Sequence[Any], body: RunBody, counter_shape: Sequence[int], empties: Sequence[Empty]
) -> list[Any]:
    """`Loop`: the final states, then the stacked scan outputs of all iterations."""
    limit, go, *states = inputs
    n_states, most = len(states), None if limit is None else int(limit.item())
    gathered: list[list[Any]] = []
    count, condition = 0, np.array(True) if go is None else go
    while np.count_nonzero(condition) == condition.size and (most is None or count < most):
        counter = np.full(counter_shape, count, np.int64)
        condition, *rest = body((counter, condition, *states))
        states, pieces = rest[:n_states], rest[n_states:]
        gathered.append(pieces)
        count += 1
    return [*states, *_joined(gathered, empties)]


def scan(inputs: Sequence[Any], node: Node, body: RunBody, empties: Sequence[Empty]) -> list[Any]:
    """`Scan` since opset 9: the final states, then the stacked scan outputs of all iterations."""
    n_scanned = node.integer("num_scan_inputs")
    n_states = len(inputs) - n_scanned
    states, scanned = list(inputs[:n_states]), inputs[n_states:]
    axes = node.integers("scan_input_axes", (0,) * n_scanned)
    is_back = node.integers("scan_input_directions", (0,) * n_scanned)
    rows = [np.moveaxis(x, axis, 0) for x, axis in zip(scanned, axes, strict=True)]
    lengths = {len(x) for x in rows}
    if len(lengths) > 1:
        raise ValueError(f"what it scans is {sorted(lengths)} long; all of it must be as long")
    gathered = []
    n = lengths.pop() if lengths else 0
    for i in range(n):
        pieces = [np.asarray(x[n - 1 - i if back else i]) for x, back in zip(rows, is_back, strict=True)]
        results = body((*states, *pieces))
        states = list(results[:n_states])
        gathered.append(results[n_states:])
    joined = _joined(gathered, empties)
    axes = node.integers("scan_output_axes", (0,) * len(joined))
    is_back = node.integers("scan_output_directions", (0,) * len(joined))
    return [
        *states,
        *(
            np.moveaxis(y[::-1] if back else y, 0, axis)
            for y, axis, back in zip(joined, axes, is_back, strict=True)
        ),
    ]


def sequence_map(inputs: Sequence[Any], body: RunBody, n_outputs: int) -> list[Any]:
    """`SequenceMap`: runs the body for each entry of the first sequence; other sequences advance with it,
    tensors stay the same.
    """
    rows = [body([x[i] if isinstance(x, list) else x for x in inputs]) for i in range(len(inputs[0]))]
    return [[row[k] for row in rows] for k in range(n_outputs)]


def _joined(gathered: Sequence[Sequence[Any]], empties: Sequence[Empty]) -> list[np.ndarray]:
    """Stack the values of each output; without iterations the outputs of `empties`."""
    if not gathered:
        return [empty() for empty in empties]
    return [np.stack(pieces) for pieces in zip(*gathered, strict=True)]
