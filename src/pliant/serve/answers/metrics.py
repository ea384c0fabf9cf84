"""The Prometheus metrics of a node."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from pliant.cluster.lead.status_report import ClusterStatus
from pliant.errors import PliantError
from pliant.route.upstream import peer_state
from pliant.serve.answers.model_statistics import ModelStatistics
from pliant.serve.answers.work_item import WorkResult
from pliant.serve.telemetry.cluster_metrics import metrics_of_primary

TEXT = "text/plain; version=0.0.4; charset=utf-8"
_ACCURACIES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.98, 1.0)
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
OUTCOMES = ("ok", "refused", "failed", "cancelled")
DIRECTIONS = ("in", "out")
HEDGED = ("there", "here", "none")
UNUSED = ("hedge", "gone")
M = TypeVar("M", bound=MetricWrapperBase)


@dataclass(frozen=True, slots=True)
class GaugeValue:
    """A gauge value, read at each scrape."""

    name: str
    about: str
    label: str
    value: str
    number: float


ReadGauges = Callable[[], Iterator[GaugeValue]]
ReadStatus = Callable[[], ClusterStatus]


@dataclass(frozen=True, slots=True)
class _Attached:
    """A node's gauges, the values of the labels of `Metrics.info`, and the status of its cluster, if any."""

    states: ReadGauges
    about: tuple[str, ...]
    cluster: ReadStatus | None


@final
class Metrics:
    """Counters and histograms of one model, in their own registry: a process can have several models.

    They continue when the model is loaded again. Gauges and `info` are those of the node that was attached
    last: while a model is loaded again, its previous node stays attached. `statistics` are those of the
    protocol.
    """

    def __init__(self) -> None:
        self.statistics = ModelStatistics()
        self._attached: tuple[_Attached, ...] = ()
        self.registry = here = CollectorRegistry()
        self.requests = Counter(
            "pliant_requests",
            "Requests by answering endpoint and outcome.",
            ("target", "outcome"),
            registry=here,
        )
        self.responses = Counter(
            "pliant_responses",
            "HTTP responses, including refusals, by path and status.",
            ("path", "status"),
            registry=here,
        )
        self.request_seconds = Histogram(
            "pliant_request_seconds",
            "Seconds from reading a request to its response.",
            ("target",),
            buckets=_BUCKETS,
            registry=here,
        )
        self.compute_seconds = Histogram(
            "pliant_compute_seconds",
            "Seconds of computing a local answer, without waiting, by endpoint.",
            ("target",),
            buckets=_BUCKETS,
            registry=here,
        )
        self.waiting_seconds = Histogram(
            "pliant_waiting_seconds",
            "Seconds that requests waited for a local endpoint.",
            ("target",),
            buckets=_BUCKETS,
            registry=here,
        )
        self.batch_sizes = Histogram(
            "pliant_batch_size",
            "Requests per batch of a local endpoint.",
            ("target",),
            buckets=(1, 2, 4, 8, 16, 32),
            registry=here,
        )
        self.fallbacks = Counter(
            "pliant_fallbacks",
            "Requests whose chosen upstream failed, by upstream.",
            ("upstream",),
            registry=here,
        )
        self.hedges = Counter(
            "pliant_hedges",
            "Requests also given to a second endpoint, by chosen endpoint and whose answer was used: the "
            "chosen one's (there), the second's (here), or neither (none).",
            ("upstream", "answered"),
            registry=here,
        )
        self.joules = Counter(
            "pliant_joules",
            "Joules spent on requests by this device, its cluster or its radio, by endpoint; not those of "
            "samples that the node times.",
            ("target",),
            registry=here,
        )
        unused = (
            "on answers of this device that were not used, by endpoint and cause: another endpoint answered "
            "first (hedge), or the caller had gone (gone)."
        )
        self.unused_seconds = Counter(
            "pliant_unused_seconds",
            f"Seconds spent {unused}",
            ("target", "cause"),
            registry=here,
        )
        self.unused_joules = Counter(
            "pliant_unused_joules", f"Joules spent {unused}", ("target", "cause"), registry=here
        )
        self.exclusions = Counter(
            "pliant_exclusions",
            "Exclusions of upstreams, by upstream and state (the log has the reason).",
            ("upstream", "state"),
            registry=here,
        )
        self.refits = Counter("pliant_refits", "Refits of the local curve.", registry=here)
        self.broadcasts = Counter(
            "pliant_broadcasts", "Curves sent to downstream nodes, by outcome.", ("outcome",), registry=here
        )
        self.pings = Counter(
            "pliant_pings", "Pings sent, by upstream and outcome.", ("upstream", "outcome"), registry=here
        )
        self.mismatches = Counter(
            "pliant_mismatches",
            "Pings and responses with another model or protocol version, by upstream.",
            ("upstream",),
            registry=here,
        )
        self.body_bytes = Gauge(
            "pliant_body_bytes", "Bytes of request bodies being read or awaiting a response.", registry=here
        )
        self.attainment = Counter(
            "pliant_attainment",
            "Requests with a deadline or accuracy floor, by answering endpoint and whether it was met.",
            ("target", "outcome"),
            registry=here,
        )
        self.accuracy = Histogram(
            "pliant_answer_accuracy",
            "Expected accuracy of answers, a fraction, if it was measured.",
            ("target",),
            buckets=_ACCURACIES,
            registry=here,
        )
        self.client_bytes = Counter(
            "pliant_client_bytes",
            "Bytes of inference requests (in) and responses (out), by answering endpoint.",
            ("target", "direction"),
            registry=here,
        )
        self.upstream_bytes = Counter(
            "pliant_upstream_bytes",
            "Bytes of forwarded requests (out) and their responses (in), with headers.",
            ("upstream", "direction"),
            registry=here,
        )
        self.info = Gauge(
            "pliant_model_info",
            "Always 1; the labels are the versions of the model and of pliant.",
            ("node", "model_version", "identity", "platform", "version"),
            registry=here,
        )
        self.registry.register(_NodeCollector(lambda: self._attached[-1:]))
        self._rows: dict[tuple[object, ...], Any] = {}

    def attach(self, states: ReadGauges, about: tuple[str, ...], cluster: ReadStatus | None) -> None:
        """Read the gauges of a node, and of the cluster that it leads, from now on.

        `about` are its labels in `info`.
        """
        self._attached = (*self._attached, _Attached(states, about, cluster))
        self._show_info()

    def detach(self, states: ReadGauges) -> None:
        """Keep no reference to a node that closed; the one attached before it, if any, is read again."""
        self._attached = tuple(one for one in self._attached if one.states != states)
        self._show_info()

    def child(self, family: M, *labels: str | int) -> M:
        """Like `family.labels`, cached, because its lookup takes longer than the counting."""
        key = (family, *labels)
        row: M | None = self._rows.get(key)
        if row is None:
            row = self._rows[key] = family.labels(*labels)
        return row

    def begin(self, target: str, *, is_upstream: bool) -> None:
        """Start the counters of an endpoint at 0: a rate needs a sample before the first event."""
        for outcome in OUTCOMES:
            self.requests.labels(target, outcome)
        for outcome in ("met", "late", *OUTCOMES):
            self.attainment.labels(target, outcome)
        for direction in DIRECTIONS:
            self.client_bytes.labels(target, direction)
            if is_upstream:
                self.upstream_bytes.labels(target, direction)
        for answered in HEDGED:
            self.hedges.labels(target, answered)
        self.fallbacks.labels(target)
        self.joules.labels(target)
        if is_upstream:
            self.mismatches.labels(target)
            return
        for cause in UNUSED:
            self.unused_seconds.labels(target, cause)
            self.unused_joules.labels(target, cause)

    def count_unused(self, target: str, is_hedged: bool, seconds: float, joules: float | None) -> None:
        """Count work for an answer that was not used; `joules` are None if unknown."""
        cause = "hedge" if is_hedged else "gone"
        self.unused_seconds.labels(target, cause).inc(seconds)
        if joules is not None:
            self.unused_joules.labels(target, cause).inc(joules)

    def count_work(self, target: str, done: WorkResult[Any]) -> None:
        """Count a request that a local endpoint answered."""
        self.child(self.waiting_seconds, target).observe(done.waited_s)
        self.child(self.compute_seconds, target).observe(done.spent_s)
        self.statistics.add_batched(done.n_together, done.run_s)

    def count_refusal(self, status: int) -> None:
        """Count a request that was refused with `status` before its path was known."""
        self.child(self.responses, "none", status).inc()

    def forget(self, upstream: str) -> None:
        """Remove the rows of a removed upstream, which would otherwise accumulate."""
        self._rows.clear()
        for counter in (self.fallbacks, self.mismatches, self.joules, self.request_seconds, self.accuracy):
            with suppress(KeyError):
                counter.remove(upstream)
        for counter, others in (
            (self.requests, OUTCOMES),
            (self.attainment, ("met", "late", *OUTCOMES)),
            (self.client_bytes, DIRECTIONS),
            (self.upstream_bytes, DIRECTIONS),
            (self.hedges, HEDGED),
            (self.exclusions, get_args(peer_state.PeerHealth)),
            (self.pings, ("ok", "failed", "mismatch", "misbehaved")),
        ):
            for other in others:
                with suppress(KeyError):
                    counter.remove(upstream, other)

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _show_info(self) -> None:
        self.info.clear()
        if self._attached:
            self.info.labels(*self._attached[-1].about).set(1)


MetricsByModel = Mapping[tuple[str, str], Metrics]
"""Metrics by the name and the version of their model."""


def text_by_model(every: MetricsByModel) -> bytes:
    """The metrics of all models in one text, labelled `model` and `model_version`, and of the process."""
    together = CollectorRegistry()
    ProcessCollector(registry=together)
    together.register(_ModelCollector(every))
    return generate_latest(together)


class _ModelCollector(Collector):
    def __init__(self, every: MetricsByModel) -> None:
        self._every = every

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for (model, version), metrics in self._every.items():
            labels = {"model": model, "model_version": version}
            for family in metrics.registry.collect():
                known = Metric(family.name, family.documentation, family.type)
                into = families.setdefault(family.name, known)
                into.samples += [
                    sample._replace(labels={**sample.labels, **labels}) for sample in family.samples
                ]
        yield from families.values()


class _NodeCollector(Collector):
    """The gauges of the attached node, if any, and the metrics of the cluster that it leads."""

    def __init__(self, attached: Callable[[], tuple[_Attached, ...]]) -> None:
        self._attached = attached

    def collect(self) -> Iterator[Metric]:
        for node in self._attached():
            families: dict[str, GaugeMetricFamily] = {}
            for state in node.states():
                if state.name not in families:
                    about, labels = state.about, (state.label,)
                    families[state.name] = GaugeMetricFamily(state.name, about, labels=labels)
                families[state.name].add_metric((state.value,), state.number)
            yield from families.values()
            if node.cluster is not None:
                with suppress(PliantError):  # the cluster is closed: the node's own metrics remain
                    yield from metrics_of_primary(node.cluster())
