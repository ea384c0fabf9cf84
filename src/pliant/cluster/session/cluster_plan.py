"""A plan of a cluster as its user sees it: each device's share, what it should take, and why."""

from collections.abc import Mapping
from dataclasses import dataclass

from pliant.cluster.lead.explain_partition import misfits
from pliant.cluster.lead.predict import Solved
from pliant.cluster.session.cluster_page import cluster_html, cluster_page
from pliant.ir.cost import Span
from pliant.ir.partition import Mode, Partition
from pliant.ir.program import Program
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.stage_graphs import weight_bytes


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What would run: each device's share and weights, and what it should take. It prints as a page.

    `misfits` say whose weights do not fit in its memory; `reasons` why this plan, where that was asked.
    """

    mode: Mode
    partition: Partition
    predicted_s: float
    layer_s: float
    deadline_s: float | None
    weight_bytes: Mapping[str, int]
    program: Program
    spans: tuple[Span, ...]
    misfits: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def met(self) -> bool | None:
        """Whether the deadline is met by prediction; None where there is none."""
        return None if self.deadline_s is None else self.predicted_s <= self.deadline_s

    def __str__(self) -> str:
        return cluster_page(self)

    def _repr_html_(self) -> str:
        return cluster_html(self)


def plan_of(
    spec: EncoderSpec, solved: Solved, deadline_s: float | None, reasons: tuple[str, ...] = ()
) -> ClusterPlan:
    """The plan that a solved partition is."""
    need = weight_bytes(spec, solved.partition)
    return ClusterPlan(
        mode=solved.partition.mode,
        partition=solved.partition,
        predicted_s=solved.seconds,
        layer_s=solved.layer_s,
        deadline_s=deadline_s,
        weight_bytes=need,
        program=solved.program,
        spans=solved.spans,
        misfits=misfits(need, solved.picture),
        reasons=reasons,
    )
