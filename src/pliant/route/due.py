"""The tasks of a router besides answering: pings, broadcasts, probes."""

from dataclasses import dataclass

from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.curve_advert import CurveAdvert


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask `successor` for its curve, with no payload; report `pinged` or `failed`."""

    successor: str


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Tell `predecessors` (names) this node's advert now, as it has moved past T_th (CRIME 4.3.3)."""

    predecessors: tuple[str, ...]
    told: CurveAdvert


@dataclass(frozen=True, slots=True)
class Probe:
    """Answer an input of `length` at `endpoint` of this device, when it is idle; report `answered_here`.

    No request is behind it: of several levels the quickest is enough.
    """

    length: int
    endpoint: str = LOCAL


Due = Ping | Broadcast | Probe
