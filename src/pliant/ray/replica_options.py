"""The options of one replica: those of the deployment, and its own before them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pliant.errors import InputError
from pliant.quantities import parse_seconds
from pliant.route.choice.request_terms import Terms


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """The default terms of requests, how many of them may wait, and the options of `pliant.open`."""

    terms: Terms
    queue: int
    opening: Mapping[str, Any]


def replica_options(common: Mapping[str, Any], own: Mapping[str, Any], max_ongoing: int) -> ReplicaOptions:
    """Return the options of a replica to which Serve sends at most `max_ongoing` requests at a time.

    One of them runs; by default the others may wait. Raises InputError for a longer queue, which would never
    fill, and for invalid terms.
    """
    opening = {**common, **own}
    latency, floor, queue = (opening.pop(name, None) for name in ("latency", "accuracy_floor", "queue"))
    if queue is None:
        queue = max_ongoing - 1
    if not 0 <= queue < max_ongoing:
        raise InputError(
            f"queue is {queue}, but Serve sends a replica at most {max_ongoing} requests at a time: give 0 "
            f"to {max_ongoing - 1}, or Deployment.options(max_ongoing_requests={max(queue, 0) + 1})."
        )
    return ReplicaOptions(Terms(None if latency is None else parse_seconds(latency), floor), queue, opening)
