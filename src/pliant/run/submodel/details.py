"""What only an elastic session tells of an answer: the submodel that ran, its bits, times and memory."""

from dataclasses import dataclass

from pliant.ir.cost import Span
from pliant.ir.program import Program
from pliant.plan.submodel.accuracy import AccuracyInterval


@dataclass(frozen=True, slots=True)
class ElasticDetails:
    """What ran for one answer, and what had been predicted.

    `submodel` is its number of layers and of slices. `bits[k][s]` is what shard s of the submodel's k-th
    layer really ran with, `planned_bits` what the plan wanted. `accuracy_interval` is the 95 % interval of
    the reply's accuracy; None where nothing was measured. `predicted_s` and `predicted_spans` are by the
    profile's medians, `spans` were measured; both are of the steps of `program`. `resident_weight_bytes` are
    preload buffer and working buffer, `read_bytes` what was read in time; `peak_rss_bytes` is the whole
    process. `within_reach` is False where, by what was observed lately, no plan keeps the target for 95 of
    100 answers.
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
