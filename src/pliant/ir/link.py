"""What moving bytes takes: from a disk to memory, or from one device to another."""

from dataclasses import dataclass

from pliant.errors import ProfileError


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a network or a disk's cold reads: a line through what transfers of many sizes took.

    Every transfer pays `latency_s` (the way through a network, a seek), every byte 1 / `bandwidth_Bps`. It is
    no `Curve`: several reads pay the latency several times, and transfers at once share the bandwidth.
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
        """Of `n_transfers`, one after the other, that move `n_bytes` together."""
        return self.latency_s * n_transfers + n_bytes / self.bandwidth_Bps

    def times(self, factor: float) -> "Link":
        """One that takes `factor` times as long."""
        return Link(self.latency_s * factor, self.bandwidth_Bps / factor)
