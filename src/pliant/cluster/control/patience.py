"""The timeouts of a cluster."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """A member that is silent for `silence_s` is lost.

    An exchange may take `times` its segment's predicted time, and never less than `least_s`: longer than a
    silence, so that who is frozen is known before those who wait for it are blamed. Reports of a failure are
    collected for `grace_s`; a worker may load weights for `prepare_s`, and has `report_s` to say what it ran.
    """

    silence_s: float = 1.0
    least_s: float = 2.0
    times: float = 5.0
    grace_s: float = 0.25
    prepare_s: float = 60.0
    report_s: float = 0.5

    def exchange_s(self, predicted_s: float | None) -> float:
        """`predicted_s` is the time of a segment; None, where nothing is known of it, counts as 6 s."""
        return max(self.least_s, self.times * (6.0 if predicted_s is None else predicted_s))
