"""The nodes that send requests here, their broadcast addresses, and the last advert sent to each."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from pliant.ir.curve import max_excess
from pliant.ir.endpoint import ServiceLevel
from pliant.route.curve_advert import CurveAdvert

_MOST = 256


@dataclass(frozen=True, slots=True)
class Listener:
    """A predecessor's address for broadcasts, and the token that it sent with the address."""

    address: str
    token: str | None = field(default=None, repr=False)


@dataclass(slots=True)
class _Predecessor:
    listener: Listener | None
    heard_s: float
    advert: CurveAdvert | None = None
    alike: tuple[ServiceLevel, ...] | None = None
    """Levels that were compared with those of `advert`, and are within the threshold."""


class Predecessors:
    """Nodes register with every request and ping, and expire after `expire_after_s` without either.

    At most 256 are kept, the most recently active ones, because names are not authenticated.
    """

    def __init__(self, expire_after_s: float) -> None:
        self._expire_after_s = expire_after_s
        self._known: OrderedDict[str, _Predecessor] = OrderedDict()
        """The least recently active first."""
        self._listening: dict[str, _Predecessor] = {}
        """Those of them that get broadcasts."""
        self.expires_at_s = float("inf")
        """No registration expires before this time; infinity if there is none."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._known)

    def register(self, name: str, listener: Listener | None, now_s: float) -> None:
        known = self._known.get(name)
        if known is not None:
            known.heard_s, known.listener = now_s, listener or known.listener
            self._known.move_to_end(name)
        else:
            if len(self._known) >= _MOST:
                self.remove(next(iter(self._known)))
            known = self._known[name] = _Predecessor(listener, now_s)
            self.expires_at_s = min(self.expires_at_s, now_s + self._expire_after_s)
        if known.listener is not None:
            self._listening[name] = known

    def remove(self, name: str) -> None:
        self._known.pop(name, None)
        self._listening.pop(name, None)

    @property
    def has_listeners(self) -> bool:
        """Whether any of them gets broadcasts."""
        return bool(self._listening)

    def listener_of(self, name: str) -> Listener | None:
        known = self._known.get(name)
        return known.listener if known is not None else None

    def record_advert(self, name: str, advert: CurveAdvert) -> None:
        """Record that `advert` was sent to it, with an answer."""
        known = self._known.get(name)
        if known is not None and known.advert is not advert:
            known.advert, known.alike = advert, None

    def expire(self, now_s: float) -> None:
        """Remove predecessors that were inactive for too long."""
        if now_s < self.expires_at_s:
            return
        limit_s = now_s - self._expire_after_s
        for name in [n for n, known in self._known.items() if known.heard_s <= limit_s]:
            self.remove(name)
        heard_s = min((known.heard_s for known in self._known.values()), default=float("inf"))
        self.expires_at_s = heard_s + self._expire_after_s

    def take_outdated(
        self, word_for: Callable[[str], CurveAdvert], max_n: int, threshold_s: float, ratio: float
    ) -> tuple[tuple[CurveAdvert, tuple[str, ...]], ...]:
        """Return (advert, recipients) where the last sent advert is off by more than T_th (CRIME 4.3.3).

        Recipients are marked as informed. A predecessor without a first advert gets it with a pending answer.
        """
        groups: dict[int, tuple[CurveAdvert, list[str]]] = {}
        compared: dict[tuple[int, int], bool] = {}

        def has_moved(before: tuple[ServiceLevel, ...], now: tuple[ServiceLevel, ...]) -> bool:
            """Cached: many predecessors were sent the same levels."""
            key = (id(before), id(now))
            if key not in compared:
                compared[key] = _has_moved(before, now, max_n, threshold_s, ratio)
            return compared[key]

        for name, known in self._listening.items():
            if known.advert is None:
                continue
            advert = word_for(name)
            if known.advert is advert:
                continue
            is_other_wait = _is_other_wait(known.advert.wait_s, advert.wait_s, threshold_s)
            if not is_other_wait and known.alike is advert.levels:
                continue
            if is_other_wait or has_moved(known.advert.levels, advert.levels):
                groups.setdefault(id(advert), (advert, []))[1].append(name)
                known.advert, known.alike = advert, None
            else:
                known.alike = advert.levels
        return tuple((advert, tuple(names)) for advert, names in groups.values())


def _has_moved(
    before: tuple[ServiceLevel, ...],
    now: tuple[ServiceLevel, ...],
    max_n: int,
    threshold_s: float,
    ratio: float,
) -> bool:
    """Return whether accuracies changed, or a time or bound changed by more than the threshold."""
    if before is now:
        return False
    if [level.quality for level in before] != [level.quality for level in now]:
        return True
    return any(
        a is not b and max_excess(a, b, max_n, ratio) > threshold_s
        for old, new in zip(before, now, strict=True)
        for a, b in ((old.curve, new.curve), (old.bound_curve, new.bound_curve))
    )


def _is_other_wait(before_s: float, now_s: float, threshold_s: float) -> bool:
    """Return whether a wait has doubled or halved: queues change constantly, so less is not reported."""
    return abs(now_s - before_s) > threshold_s + 0.5 * max(now_s, before_s)
