"""The protocol of endpoints: answer a request, and estimate the time of the answer.

Sessions implement it: those of a device, of a cluster, and of several nodes together. An upstream node does
not: a router knows it by its adverts alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pliant.errors import InputError
from pliant.ir.curve import OUT_OF_REACH_S, Curve, limit
from pliant.ir.reply import Reply
from pliant.ir.times.timing import Timing

ACCURACY_TOLERANCE = 1e-9
"""Accuracies that differ by less count as equal."""
RESOLUTION = 0.0025
"""With a deadline, accuracies that differ by no more count as equal, and the quicker answer is taken.

Accuracies are measured on a finite set. On the 872 examples of SST-2, the difference of two levels that
answer 1 % of them differently has a standard error of sqrt(0.01 / 872) = 0.0034. A smaller difference is no
reason for an answer that takes longer and is nearer to its deadline. A floor is never rounded.
"""

NO_ANSWER_S = OUT_OF_REACH_S / 10
"""An input whose time is as long as this is not answered at all, whatever the pace of the device."""


@dataclass(frozen=True, slots=True)
class Request:
    """An input of `length` items, as text or as tensors by name; `deadline_s` counts from its arrival.

    Without limits, it gets the most accurate answer. With a deadline, the fastest that meets it with an
    accuracy within `RESOLUTION` of the most accurate that meets it; if none meets it, the fastest. With only
    a floor, the fastest that is at least that accurate.
    """

    length: int
    text: str | None = None
    tensors: Mapping[str, "np.ndarray[Any, Any]"] = field(default_factory=dict)
    deadline_s: float | None = None
    accuracy_floor: float | None = None

    def __post_init__(self) -> None:
        if self.length < 0:
            raise InputError(f"a request has length {self.length}; lengths are 0 or more.")
        if self.text is None and not self.tensors:
            raise InputError("a request has neither text nor tensors; give one of them.")
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise InputError(f"a request has {self.deadline_s} s left; give a deadline above 0, or none.")
        if self.accuracy_floor is not None and not 0 <= self.accuracy_floor <= 1:
            raise InputError(f"a request has a floor of {self.accuracy_floor}; give a fraction, or none.")


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected seconds and accuracy (0..1, None if unknown) of a request at an endpoint.

    95 % of such answers take less than `bound_s`; None if unknown.
    """

    seconds: float
    accuracy: float | None = None
    bound_s: float | None = None

    def after(self, first: Timing | None) -> "Estimate":
        """Return the estimate of an answer before which something else takes `first`."""
        if first is None:
            return self
        bound_s = None if self.bound_s is None else self.bound_s + first.p95_s
        return replace(self, seconds=self.seconds + first.median_s, bound_s=bound_s)


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """One accuracy that an endpoint offers, and its answers' time by input length, without queueing.

    `curve` is the median in seconds; 95 % of answers stay under `bound`, which is the curve itself if
    unknown. `accuracy` is a fraction, None if it was not measured; then levels are ordered by `fidelity`, the
    part of the whole model that computes. At lengths that there is no memory for, both are `OUT_OF_REACH_S`
    (`limited`). `exchange_j` are the joules by input length that radios take for the bytes that the
    endpoint's devices exchange; None if they have no radios. `reason` says why it answers no input now.
    """

    curve: Curve
    accuracy: float | None = None
    bound: Curve | None = None
    fidelity: float = 1.0
    exchange_j: Curve | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        for value in (self.accuracy, self.fidelity):
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"a level has an accuracy or fidelity of {value}; give fractions, 0 to 1.")

    @property
    def quality(self) -> float:
        """The key that orders levels: the accuracy, or the fidelity if it was not measured."""
        return self.fidelity if self.accuracy is None else self.accuracy

    @property
    def bound_curve(self) -> Curve:
        return self.curve if self.bound is None else self.bound

    @property
    def unbounded(self) -> "ServiceLevel":
        """The same level with medians only."""
        return self if self.bound is None else replace(self, bound=None)

    def limited(self, most_n: int) -> "ServiceLevel":
        """The same level with memory for inputs of up to length `most_n` only."""
        bound = None if self.bound is None else limit(self.bound, most_n)
        return replace(self, curve=limit(self.curve, most_n), bound=bound)

    @property
    def most_n(self) -> int | None:
        """The longest input that there is memory for; None without such a limit."""
        answered = self.answered_points
        if len(answered) == len(self.curve.points):
            return None
        return int(answered[-1][0]) if answered else 0

    @property
    def answered_points(self) -> tuple[tuple[float, float], ...]:
        """The points of `curve` that there is memory for."""
        return tuple(point for point in self.curve.points if point[1] < NO_ANSWER_S)

    def reaches(self, floor: float) -> bool:
        """Return whether answers have at least the accuracy `floor`; 0 accepts any."""
        return floor <= 0 or (self.accuracy is not None and self.accuracy >= floor - ACCURACY_TOLERANCE)


def unreachable_level(reason: str) -> ServiceLevel:
    """Return the only level of an endpoint that answers no input now, because of `reason`."""
    return ServiceLevel(Curve(((0, OUT_OF_REACH_S),)), reason=reason)


@runtime_checkable
class Endpoint(Protocol):
    """An object that can answer a request and estimate how long that takes."""

    @property
    def name(self) -> str:
        """Its name in the node's logs and metrics."""
        ...

    @property
    def best(self) -> float | None:
        """The accuracy available for inputs of any length; None if it was not measured."""
        ...

    def curve(self, accuracy_floor: float = 0.0) -> Curve:
        """The seconds by input length of answers at least that accurate. Raises BudgetError if none is."""
        ...

    def levels(self) -> tuple[ServiceLevel, ...]:
        """Return the accuracies currently offered, worst first; the same tuple until they change."""
        ...

    def estimate(self, request: Request) -> Estimate:
        """Return the time that `answer(request)` would take now."""
        ...

    def answer(self, request: Request) -> Reply[Any]:
        """Return the answer. Raises PliantError on failure."""
        ...
