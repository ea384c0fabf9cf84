"""The cost of moving bytes: from a disk to memory, or from one device to another."""

from dataclasses import dataclass

from pliant.errors import ProfileError


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a network or a disk's cold reads: a line through measured times of many sizes.

    Every transfer costs `latency_s` (network delay, seek), every byte 1 / `bandwidth_Bps`. This is not a
    `Curve`: several reads cost the latency several times, and concurrent transfers share the bandwidth.
    """

    latency_s: float
    bandwidth_Bps: float

    def __post_init__(self) -> None:
        if not (0 <= self.latency_s < float("inf") and self.bandwidth_Bps > 0):
            raise ProfileError(
                f"no link or disk takes {self.latency_s} s a transfer at {self.bandwidth_Bps} B/s; "
                "measure again."
            )

    def seconds(self, n_bytes: float, n_transfers: int = 1) -> float:
        """Return the seconds of `n_transfers` in sequence that move `n_bytes` in total."""
        return self.latency_s * n_transfers + n_bytes / self.bandwidth_Bps

    def times(self, factor: float) -> "Link":
        """Return a link that is `factor` times slower."""
        return Link(self.latency_s * factor, self.bandwidth_Bps / factor)
