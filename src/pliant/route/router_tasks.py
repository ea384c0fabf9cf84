"""The tasks of a router besides answering: pings, broadcasts, probes."""

from dataclasses import dataclass

from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.curve_advert import CurveAdvert


@dataclass(frozen=True, slots=True)
class PingTask:
    """Request `successor`'s curve, without payload; report `record_ping` or `record_failure`."""

    successor: str


@dataclass(frozen=True, slots=True)
class BroadcastTask:
    """Send this node's advert to `predecessors` (names): it has changed by more than T_th (CRIME 4.3.3)."""

    predecessors: tuple[str, ...]
    advert: CurveAdvert


@dataclass(frozen=True, slots=True)
class ProbeTask:
    """Answer an input of `length` at `endpoint` of this device, when it is idle; report it by
    `record_local_answer`.

    It serves no request: of several levels, the fastest suffices.
    """

    length: int
    endpoint: str = LOCAL


RouterTask = PingTask | BroadcastTask | ProbeTask
