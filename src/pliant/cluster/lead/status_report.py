"""The state of a cluster as its primary reports it: members, plan, runs and faults."""

from dataclasses import dataclass

from pliant.ir.partition import Partition

N_FAULTS = 16
"""Maximum number of recent faults in a report."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One worker: `reason` says why it is unusable, if it is; `version` is its pliant release."""

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
    """The plan of the current run, or of the last: a model by identity, and the partition."""

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
    """The state of a primary and its cluster.

    `n_runs` succeeded and `n_failed` ended in an error; `faults` are the last ones, most recent last.
    `problems` say which members were refused, and why.
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
