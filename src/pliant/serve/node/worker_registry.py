"""The workers of the cluster that a node leads."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from pliant.cluster.lead.status_report import ClusterStatus


@runtime_checkable
class WorkerRegistry(Protocol):
    """The part of a cluster's session that manages workers; thread-safe."""

    def status(self) -> ClusterStatus:
        """The runs, and all workers that ever joined, by name."""

    def dismiss(self, name: str) -> None:
        """Leave a worker out until it is admitted again."""

    def readmit(self, name: str) -> None:
        """Allow a dismissed worker to join again."""


def worker_registry(sessions: Iterable[object]) -> WorkerRegistry | None:
    """The session of a cluster among those of a node; None if it leads none."""
    return next((one for one in sessions if isinstance(one, WorkerRegistry)), None)
