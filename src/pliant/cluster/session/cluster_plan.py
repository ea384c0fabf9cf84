"""A cluster's plan for users: each device's share, the predicted times, and the reasons."""

from collections.abc import Mapping
from dataclasses import dataclass

from pliant.cluster.lead.explain_partition import misfits
from pliant.cluster.lead.predict import Prediction
from pliant.cluster.session.cluster_page import cluster_html, cluster_page
from pliant.ir.cost import Span
from pliant.ir.partition import Mode, Partition
from pliant.ir.program import Program
from pliant.ir.times.bounds import AdaptiveBound
from pliant.ir.times.timing import Timing, is_in_time
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.activation_bytes import memory_bytes
from pliant.plan.split.stage_graphs import weight_bytes


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A plan: each device's share and weights, and the predicted times. It prints as a page.

    95 of 100 runs stay under `bound_s`, judged by the latest ones. `misfits` name devices whose weights
    and activations do not fit in their memory; `reasons` explain the plan, if requested.
    """

    mode: Mode
    partition: Partition
    predicted_s: float
    bound_s: float
    layer_s: float
    deadline_s: float | None
    weight_bytes: Mapping[str, int]
    program: Program
    spans: tuple[Span, ...]
    misfits: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def met(self) -> bool | None:
        """Whether 95 of 100 runs meet the deadline; None without a deadline."""
        return is_in_time(self.bound_s, self.deadline_s)

    def __str__(self) -> str:
        return cluster_page(self)

    def _repr_html_(self) -> str:
        return cluster_html(self)


def plan_of(
    spec: EncoderSpec,
    solved: Prediction,
    bound: AdaptiveBound,
    deadline_s: float | None,
    reasons: tuple[str, ...] = (),
) -> ClusterPlan:
    """Return the plan of a solved partition; `bound` has observed earlier runs."""
    return ClusterPlan(
        mode=solved.partition.mode,
        partition=solved.partition,
        predicted_s=solved.seconds,
        bound_s=bound.correct(Timing(solved.seconds, solved.seconds)).p95_s,
        layer_s=solved.layer_s,
        deadline_s=deadline_s,
        weight_bytes=weight_bytes(spec, solved.partition),
        program=solved.program,
        spans=solved.spans,
        misfits=misfits(memory_bytes(spec, solved.partition), solved.topology),
        reasons=reasons,
    )
