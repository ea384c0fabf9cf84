"""The protocol of endpoints: answer a request, and estimate how long the answer will take.

A local session, a cluster and a remote node are three implementations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pliant.errors import InputError
from pliant.ir.curve import Curve
from pliant.ir.reply import Reply

ALIKE = 1e-9
"""Accuracies that differ by less are the same."""


@dataclass(frozen=True, slots=True)
class Request:
    """An input of `length` items, as text or as tensors by name; `deadline_s` counts from its arrival.

    Alone, it gets the most accurate answer there is. With a deadline, the most accurate that keeps it, or
    else the fastest; with a floor only, the fastest at least that accurate.
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
    """What an endpoint expects of a request: seconds, and accuracy in 0..1, None where unknown.

    95 % of such answers take less than `bound_s`; None where that is not known.
    """

    seconds: float
    accuracy: float | None = None
    bound_s: float | None = None


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """One accuracy that an endpoint can give, and what an answer takes by input length, without waiting.

    `curve` is the median in seconds; 95 % of answers stay under `bound`, which is the curve itself where
    nothing more is known. `accuracy` is a fraction, None where it was never measured. Then `fidelity`, the
    part of the whole model that computes, orders levels.
    """

    curve: Curve
    accuracy: float | None = None
    bound: Curve | None = None
    fidelity: float = 1.0

    def __post_init__(self) -> None:
        for value in (self.accuracy, self.fidelity):
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"a level has an accuracy or fidelity of {value}; give fractions, 0 to 1.")

    @property
    def quality(self) -> float:
        """What levels are ordered by: the accuracy, or the fidelity where that was never measured."""
        return self.fidelity if self.accuracy is None else self.accuracy

    @property
    def bound_curve(self) -> Curve:
        return self.curve if self.bound is None else self.bound

    @property
    def unbounded(self) -> "ServiceLevel":
        """The same by medians alone."""
        return self if self.bound is None else replace(self, bound=None)

    def reaches(self, floor: float) -> bool:
        """Whether answers have at least the accuracy `floor`, which 0 is for any."""
        return floor <= 0 or (self.accuracy is not None and self.accuracy >= floor - ALIKE)


@runtime_checkable
class Endpoint(Protocol):
    """Anything that can answer a request and estimate how long it will take."""

    @property
    def name(self) -> str:
        """What the node's logs and metrics call it."""
        ...

    @property
    def best(self) -> float | None:
        """The accuracy that inputs of any length can have; None where it was never measured."""
        ...

    def curve(self, accuracy_floor: float = 0.0) -> Curve:
        """Seconds by input length of answers at least that accurate. Raises BudgetError if it has none."""
        ...

    def levels(self) -> tuple[ServiceLevel, ...]:
        """The accuracies that it can give now, worst first; the same tuple until they change."""
        ...

    def estimate(self, request: Request) -> Estimate:
        """What `answer(request)` would take now."""
        ...

    def answer(self, request: Request) -> Reply[Any]:
        """The answer. Raises PliantError if it cannot be given."""
        ...
