"""The settings of a router: windows, thresholds, waits. `paper_settings` gives CRIME's own."""

from dataclasses import dataclass
from typing import Literal, get_args

from pliant.errors import RouteError
from pliant.ir.times.fit import FitSettings
from pliant.route.choice.energy import PowerModel, RadioModel
from pliant.route.upstream.transfer import TransferSettings

BoundRule = Literal["adaptive", "fixed", "none"]
"""The bounds that meet deadlines: those of the latest answers, those of an endpoint's first ones relative to
its medians, or the medians themselves.
"""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """One model's routing on one node; lengths are 0..`max_n`.

    Local times are fitted over `window` samples every `refit_every` (M_l), with `degree` 2 for attention
    models. Predecessors are informed if the curve has changed by more than `threshold_s` (T_th) plus
    `threshold_ratio` of it. A successor without contact for `ping_after_s` (T_ping) is pinged; with
    `adapts_pings` at once after a surprising round trip, after up to four times as long without one, and
    eight times later if the possible saving is less than the ping takes. A broadcast triggers a ping of the
    node that it names, at most one per `retry_s`; with `trusts_broadcasts` its curve is used directly.
    Deadlines are met by bounds that 95 % of answers stay under (`bounds`). If this device looks slower than
    before, and got no input for `probe_after_s`, it is probed.
    """

    max_n: int
    window: int = 64
    refit_every: int = 16
    degree: int = 1
    is_robust: bool = True
    bounds: BoundRule = "adaptive"
    threshold_s: float = 1e-3
    threshold_ratio: float = 0.05
    ping_after_s: float = 60.0
    adapts_pings: bool = True
    trusts_broadcasts: bool = False
    probe_after_s: float | None = 30.0
    expire_after_s: float = 1500.0
    rtt_fresh_s: float = 10.0
    retry_s: float = 1.0
    retry_limit_s: float = 60.0
    aside_s: float = 10.0
    aside_limit_s: float = 600.0
    wait_memory_s: float = 2.0
    power: PowerModel | None = None
    radio: RadioModel | None = None

    def __post_init__(self) -> None:
        times = (self.ping_after_s, self.expire_after_s, self.retry_s, self.aside_s, self.wait_memory_s)
        if self.max_n < 1 or not all(t > 0 for t in times):
            raise RouteError(
                f"lengths up to {self.max_n} and waits of {times} s cannot be: give a length of 1 or more, "
                "and times above 0."
            )
        if not (self.threshold_s >= 0 and self.threshold_ratio >= 0):
            raise RouteError(
                f"a threshold of {self.threshold_s} s and {self.threshold_ratio} of a curve cannot be: give "
                "0 or more of both."
            )
        if self.bounds not in get_args(BoundRule):
            raise RouteError(f"there are no {self.bounds!r} bounds: give adaptive, fixed or none.")
        _ = self.fit, self.transfer  # which validate the rest

    @property
    def fit(self) -> FitSettings:
        return FitSettings(self.window, self.refit_every, self.degree, self.is_robust)

    @property
    def transfer(self) -> TransferSettings:
        return TransferSettings(self.is_robust, self.rtt_fresh_s)


def paper_settings(
    max_n: int,
    window: int = 100,
    refit_every: int = 10,
    threshold_s: float = 1e-3,
    ping_after_s: float = 60.0,
    power: PowerModel | None = None,
    radio: RadioModel | None = None,
) -> RouterSettings:
    """Return CRIME as published: plain least squares, the last round trip, fixed thresholds, no probes.

    Pings are fixed too, and broadcasts are trusted.
    """
    return RouterSettings(
        max_n,
        window,
        refit_every,
        is_robust=False,
        bounds="none",
        threshold_s=threshold_s,
        threshold_ratio=0.0,
        ping_after_s=ping_after_s,
        adapts_pings=False,
        trusts_broadcasts=True,
        probe_after_s=None,
        power=power,
        radio=radio,
    )
