"""The state of a cluster as its primary reports it: members, plan, runs and faults."""

from dataclasses import dataclass

from pliant.ir.partition import Partition

N_FAULTS = 16
"""Last faults that are told."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One worker: `reason` says why it is not used, where it is not; `version` is its release of pliant."""

    name: str
    is_usable: bool
    reason: str | None
    heard_s_ago: float
    free_bytes: int
    n_threads: int
    models: tuple[str, ...]
    n_faults: int
    version: str = ""


@dataclass(frozen=True, slots=True)
class PlanStatus:
    """The plan of the run that is under way, or of the last: a model by identity, and who takes what."""

    model: str
    partition: Partition


@dataclass(frozen=True, slots=True)
class FaultStatus:
    """A segment that was repeated, `ago_s` seconds ago, without `members`, for `reasons`."""

    ago_s: float
    segment: int
    members: tuple[str, ...]
    reasons: tuple[str, ...]
    noticed_s: float
    planned_s: float


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What a primary says of itself and its cluster.

    `n_runs` were answered and `n_failed` ended in an error; `faults` are the last ones, the latest last.
    `problems` say who was turned away, and why.
    """

    name: str
    version: str
    engine: str
    members: tuple[MemberStatus, ...]
    plan: PlanStatus | None = None
    is_running: bool = False
    n_runs: int = 0
    n_failed: int = 0
    faults: tuple[FaultStatus, ...] = ()
    problems: tuple[str, ...] = ()
