"""What the planner remembers of a plan: its inputs, a change to it, and its time by another topology."""

from collections.abc import Mapping
from dataclasses import dataclass

from pliant.cluster.lead.predict import Prediction
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.cluster.watch.adapt import Topology


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """A plan's inputs, the bytes of each device's weights and activations, and those of the whole model."""

    solved: Prediction
    need: Mapping[str, int]
    whole_bytes: int
    is_doubted: bool = False
    """Whether plans of its kind turned out slower since than the saving required at its choice allows for."""


@dataclass(frozen=True, slots=True)
class PlanChange:
    """The plan to change to, and why; `held` is None if memory does not suffice beside the current plan."""

    solved: Prediction
    reason: str
    held: ReadyPlan | None


@dataclass(frozen=True, slots=True)
class LayerEstimate:
    """The time of a plan's layer by a topology other than its own."""

    solved: Prediction
    topology: Topology
    layer_s: float
