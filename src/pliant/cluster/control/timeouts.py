"""The timeouts of a cluster."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterTimeouts:
    """Timeouts: a member that is silent for `silence_s` is lost.

    An exchange may take `times` the predicted time of its segment, and at least `least_s`. This is longer
    than `silence_s`, so a frozen member is detected before the members that wait for it are blamed.
    Failure reports are collected for `grace_s`; a worker may load weights for `prepare_s`, and has
    `report_s` to send its times.
    """

    silence_s: float = 1.0
    least_s: float = 2.0
    times: float = 5.0
    grace_s: float = 0.25
    prepare_s: float = 60.0
    report_s: float = 0.5

    def exchange_s(self, predicted_s: float | None) -> float:
        """Return the timeout of an exchange for a segment's `predicted_s`; None (unknown) counts as 6 s."""
        return max(self.least_s, self.times * (6.0 if predicted_s is None else predicted_s))
