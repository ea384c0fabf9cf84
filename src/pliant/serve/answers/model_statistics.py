"""Statistics of a model's requests, in the form of Triton's statistics extension."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from prometheus_client import CollectorRegistry, Metric

_NS = 1e9
_QUEUE, _COMPUTE, _BATCH = "pliant_waiting_seconds", "pliant_compute_seconds", "pliant_batch_size"


@dataclass(slots=True)
class Duration:
    """A count and a total duration."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, n: int = 1) -> None:
        self.count += n
        self.seconds += seconds

    def per(self, n: int) -> "Duration":
        """A part of it, where `n` events each have the duration of one."""
        return Duration(self.count // n, self.seconds / n)

    def to_protocol(self) -> dict[str, int]:
        return {"count": self.count, "ns": round(self.seconds * _NS)}


@final
class ModelStatistics:
    """Successful and failed requests of one model since it was first loaded."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._success, self._fail = Duration(), Duration()
        self.decoding, self.encoding = Duration(), Duration()
        """Of requests, and of responses that were answered; a row counts as one, its request adds time."""
        self._batched = defaultdict[int, Duration](Duration)
        self._last_s = 0.0

    def add(self, is_answered: bool, seconds: float) -> None:
        """Count a request that ended `seconds` after its arrival."""
        (self._success if is_answered else self._fail).add(seconds)
        if is_answered:
            self._last_s = self._wall_clock()

    def add_batched(self, n_together: int, seconds: float) -> None:
        """Count a request that ran here in a batch of `n_together`, which took `seconds`."""
        self._batched[n_together].add(seconds)

    def to_protocol(self, name: str, version: str, registry: CollectorRegistry) -> dict[str, Any]:
        """The statistics in the protocol's form; queue and compute times come from `registry`.

        An execution is a batch of requests that ran here together. Requests are decoded, and their answers
        encoded, one by one (`compute_input`, `compute_output`), so a batch has its computing time only.
        """
        families = {family.name: family for family in registry.collect()}
        queue, compute = _histogram(families, _QUEUE), _histogram(families, _COMPUTE)
        return {
            "name": name,
            "version": version,
            "last_inference": round(self._last_s * 1e3),
            "inference_count": self._success.count,
            "execution_count": _histogram(families, _BATCH).count,
            "inference_stats": {
                "success": self._success.to_protocol(),
                "fail": self._fail.to_protocol(),
                "queue": queue.to_protocol(),
                "compute_input": self.decoding.to_protocol(),
                "compute_infer": compute.to_protocol(),
                "compute_output": self.encoding.to_protocol(),
            },
            "batch_stats": [
                {"batch_size": n, "compute_infer": one.per(n).to_protocol()}
                for n, one in sorted(self._batched.items())
            ],
        }


def _histogram(families: Mapping[str, Metric], name: str) -> Duration:
    """Count and sum of a histogram over all labels."""
    found = Duration()
    for sample in families[name].samples if name in families else ():
        if sample.name == f"{name}_count":
            found.count += int(sample.value)
        if sample.name == f"{name}_sum":
            found.seconds += sample.value
    return found
