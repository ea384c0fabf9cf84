"""The details of an elastic session's answer: the submodel that ran, its bits, times and memory."""

from dataclasses import dataclass

from pliant.ir.cost import Span
from pliant.ir.program import Program
from pliant.plan.submodel.accuracy import AccuracyInterval


@dataclass(frozen=True, slots=True)
class ElasticDetails:
    """The run of one answer, measured and predicted.

    `submodel` is its number of layers and of slices. `bits[k][s]` are the bits with which shard s of the
    submodel's k-th layer ran, `planned_bits` the planned bits. `accuracy_interval` is the 95 % interval of
    the reply's accuracy; None without measured accuracy. `predicted_s` and `predicted_spans` use the
    profile's medians, `spans` are measured; both are of the steps of `program`. `resident_weight_bytes` is
    the size of preload buffer and working buffer, `read_bytes` the bytes that were read in time;
    `peak_rss_bytes` is the whole process. `within_reach` is False if, by recent observations, no plan meets
    the target for 95 % of answers.
    """

    submodel: tuple[int, int]
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
