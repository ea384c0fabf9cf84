"""The reply of an elastic session: what ran, its time, and the prediction."""

from dataclasses import dataclass

import numpy as np

from pliant.ir.cost import Span
from pliant.ir.program import Program
from pliant.plan.submodel.accuracy import AccuracyInterval
from pliant.plan.submodel.submodel import Cut


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, what it took, and what had been predicted.

    `logits` float32 [labels] are the model's own and `scores` their softmax, in label order, `score` that
    of `label`; an embedding model answers with `vector` instead. `seconds` run from text to answer; for
    `waited_s` of them other threads had the session. `bits[k][s]` is what shard s of the submodel's k-th
    layer really ran with, `planned_bits` what the plan wanted. `resident_weight_bytes` are preload buffer
    and working buffer; `peak_rss_bytes` is the whole process. `cut` tells why the submodel may leave layers
    or slices out (see `Plan`). `expected_accuracy`, with its 95 % interval, is that of the submodel at the
    bits that ran; None where nothing was measured. `within_reach` is False where, by what was
    observed lately, no plan keeps the target for 95 of 100 answers.
    """

    label: str | None
    score: float | None
    scores: tuple[float, ...] | None
    logits: np.ndarray | None
    vector: np.ndarray | None
    seconds: float
    waited_s: float
    target_s: float
    n_tokens: int
    submodel: tuple[int, int]
    cut: Cut
    expected_accuracy: float | None
    accuracy_interval: AccuracyInterval | None
    bits: tuple[tuple[int, ...], ...]
    planned_bits: tuple[tuple[int, ...], ...]
    predicted_s: float
    resident_weight_bytes: int
    arena_bytes: int
    peak_rss_bytes: int
    read_bytes: int
    spans: tuple[Span, ...]
    predicted_spans: tuple[Span, ...]
    program: Program
    within_reach: bool

    @property
    def met(self) -> bool:
        """Whether the answer came within the target."""
        return self.seconds <= self.target_s


def softmax(logits: np.ndarray) -> tuple[float, ...]:
    """Probabilities, in float64, of logits [labels]; their sum is 1."""
    shares = np.exp(logits.astype(np.float64) - logits.max())
    return tuple((shares / shares.sum()).tolist())
