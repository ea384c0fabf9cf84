"""`--metrics`: health and metrics of a worker, or of the primary of a cluster."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # they need pyzmq and prometheus-client, which a verb's help must not
    from pliant.api.open_cluster import Cluster
    from pliant.cluster.member.worker import ClusterWorker
    from pliant.serve.telemetry.process_page import ProcessPage

MetricsAddress = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        help="Serve /metrics (Prometheus) and /v2/health at HOST:PORT; port 0 selects a free port.",
        show_default="not served",
    ),
]


@contextmanager
def worker_page(address: str, worker: "ClusterWorker", say: Callable[[str], None]) -> Iterator[None]:
    """Serve health and metrics of `worker`, which is ready while it is connected to a primary."""
    from pliant.serve.telemetry.cluster_metrics import metrics_of_worker
    from pliant.serve.telemetry.process_page import ProcessPage

    page = ProcessPage(lambda: bool(worker.status.joined), lambda: metrics_of_worker(worker.status))
    with _shown(address, page, say):
        yield


@contextmanager
def primary_page(
    address: str, cluster: "Cluster", n_workers: int, say: Callable[[str], None]
) -> Iterator[None]:
    """Serve health and metrics of `cluster`, which is ready while `n_workers` of its workers are usable."""
    from pliant.serve.telemetry.cluster_metrics import metrics_of_primary
    from pliant.serve.telemetry.process_page import ProcessPage

    primary = cluster.leader.primary

    def is_ready() -> bool:
        return sum(member.is_usable for member in primary.status().members) >= n_workers

    with _shown(address, ProcessPage(is_ready, lambda: metrics_of_primary(primary.status())), say):
        yield


@contextmanager
def _shown(address: str, page: "ProcessPage", say: Callable[[str], None]) -> Iterator[None]:
    from pliant.serve.access.security import parse_address
    from pliant.serve.telemetry.process_page import process_page

    where = parse_address(address)
    with process_page(where.host, where.port, page) as url:
        say(f"metrics at {url}/metrics")
        yield
