"""What the planner remembers: a plan's inputs, a change to it, its time by another topology, load rates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from pliant.cluster.lead.predict import Prediction
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.cluster.watch.adapt import Topology

_LOAD_BPS = 200e6  # assumed rate of loading and packing weights, until a device has shown its own


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """A plan's inputs, the bytes of each device's weights and activations, and those of the whole model.

    `load_s` is how long loading weights for it took.
    """

    solved: Prediction
    need: Mapping[str, int]
    whole_bytes: int
    load_s: float = 0.0
    is_doubted: bool = False
    """Whether plans of its kind turned out slower since than the saving required at its choice allows for."""


@dataclass(frozen=True, slots=True)
class PlanChange:
    """The plan to change to, and why; `held` is None if memory does not suffice beside the current plan."""

    solved: Prediction
    reason: str
    held: ReadyPlan | None


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of plan inside a run: the first segment, and the reason."""

    segment: int
    reason: str


@dataclass(frozen=True, slots=True)
class LayerEstimate:
    """The time of a plan's layer by a topology other than its own."""

    solved: Prediction
    topology: Topology
    layer_s: float


@final
class LoadRates:
    """The rate of each device's latest load of weights; `seconds` is safe on any thread."""

    def __init__(self) -> None:
        self._Bps: Mapping[str, float] = {}

    def observe(self, loads: Mapping[str, tuple[int, float]]) -> None:
        """Record the bytes that each device loaded, and the seconds that took."""
        self._Bps = {**self._Bps, **{name: n / took_s for name, (n, took_s) in loads.items() if n and took_s}}

    def seconds(self, n_bytes: Mapping[str, int]) -> float:
        """Return the seconds until all devices, at the same time, have loaded so many bytes."""
        return max(n / self._Bps.get(name, _LOAD_BPS) for name, n in n_bytes.items())
