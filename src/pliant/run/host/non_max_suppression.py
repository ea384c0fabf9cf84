"""The ONNX operator NonMaxSuppression."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pliant.arrays import Float32
from pliant.ir.graph import Node


def non_max_suppression(inputs: Sequence[Any], node: Node) -> Sequence[Any]:
    """The ONNX operator: boxes [batch, boxes, 4] and scores [batch, classes, boxes] to int64 [found, 3].

    A row is (batch, class, box). The boxes of a class are sorted by descending score, equal scores by box.
    """
    boxes, scores, *limits = inputs
    most, overlap, least = (*limits, None, None, None)[:3]
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[2] != 4:
        raise ValueError("boxes must be [batch, boxes, 4] and scores [batch, classes, boxes]")
    if (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2]):
        raise ValueError("boxes and scores are of different batches or numbers of boxes")
    n_most = 0 if most is None else int(most.item())
    threshold = np.float32(0.0 if overlap is None else overlap.item())
    if not 0 <= threshold <= 1:
        raise ValueError(f"the iou_threshold is {threshold}; it must lie between 0 and 1")
    corners = _corners(boxes, node.flag("center_point_box"))
    found = [
        (batch, kind, box)
        for batch in range(scores.shape[0])
        for kind in range(scores.shape[1])
        for box in _best(corners[batch], scores[batch, kind], n_most, threshold, least)
    ]
    return (np.array(found, np.int64).reshape(-1, 3),)


def _corners(boxes: Float32[np.ndarray, "batch boxes 4"], is_center: bool) -> np.ndarray:
    """The lower and upper corner of each box."""
    if is_center:
        middle, half = boxes[..., :2], boxes[..., 2:] / 2
        return np.concatenate([middle - half, middle + half], -1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _best(
    corners: np.ndarray, scores: np.ndarray, n_most: int, threshold: np.float32, least: np.ndarray | None
) -> list[int]:
    """The selected boxes of one class, the best first."""
    left = np.arange(len(scores)) if least is None else np.flatnonzero(scores > least.item())
    left = left[np.argsort(-scores[left], kind="stable")]
    areas = np.prod(corners[:, 2:] - corners[:, :2], -1)
    kept: list[int] = []
    while len(left) and len(kept) < n_most:
        best, left = left[0], left[1:]
        kept.append(int(best))
        low = np.maximum(corners[best, :2], corners[left, :2])
        sides = np.maximum(np.minimum(corners[best, 2:], corners[left, 2:]) - low, 0)
        shared = sides[:, 0] * sides[:, 1]
        union = areas[best] + areas[left] - shared
        is_box = (areas[left] > 0) & (areas[best] > 0) & (shared > 0)
        ratio = np.divide(shared, union, out=np.zeros_like(shared), where=is_box)
        left = left[ratio <= threshold]
    return kept
