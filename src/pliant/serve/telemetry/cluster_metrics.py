"""Metrics of a cluster's primary, which a node may be, and of its workers, collected at each scrape."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pliant.cluster.lead.status_report import ClusterStatus

if TYPE_CHECKING:  # it needs pyzmq, which a node without a cluster must not
    from pliant.cluster.member.worker import WorkerStatus


def metrics_of_primary(status: ClusterStatus) -> Iterator[Metric]:
    """Runs by outcome; for each worker its use, memory, faults and last heartbeat."""
    runs = CounterMetricFamily("pliant_cluster_runs", "Runs by outcome.", labels=("outcome",))
    runs.add_metric(("ok",), status.n_runs)
    runs.add_metric(("failed",), status.n_failed)
    yield runs
    yield GaugeMetricFamily("pliant_cluster_running", "Whether a run is in progress.", status.is_running)
    rows = (
        ("usable", "Whether a worker is used.", [float(one.is_usable) for one in status.members]),
        ("free_bytes", "Memory that its model may use.", [one.free_bytes for one in status.members]),
        ("heard_seconds", "Time since its last heartbeat.", [one.heard_s_ago for one in status.members]),
        (
            "faults",
            "Segments repeated after its failures.",
            [one.n_faults for one in status.members],
        ),
    )
    for name, about, values in rows:
        family = GaugeMetricFamily(f"pliant_cluster_member_{name}", about, labels=("member",))
        for member, value in zip(status.members, values, strict=True):
            family.add_metric((member.name,), value)
        yield family


def metrics_of_worker(status: "WorkerStatus") -> Iterator[Metric]:
    """Joined primaries, held plans, runs and free memory of a worker."""
    yield GaugeMetricFamily("pliant_worker_joined", "Primaries that it has joined.", len(status.joined))
    yield GaugeMetricFamily("pliant_worker_refused", "Primaries that refuse it.", status.n_refusals)
    yield GaugeMetricFamily("pliant_worker_plans", "Prepared plans.", status.n_plans)
    yield GaugeMetricFamily("pliant_worker_free_bytes", "Memory that its model may use.", status.free_bytes)
    runs = CounterMetricFamily("pliant_worker_runs", "Runs with this worker by outcome.", labels=("outcome",))
    runs.add_metric(("ok",), status.n_runs)
    runs.add_metric(("failed",), status.n_failed)
    yield runs
