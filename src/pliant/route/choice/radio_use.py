"""The energy of radios over time: this device's to its upstreams, and those of a cluster's devices."""

from dataclasses import replace
from typing import final

from pliant.route.choice.candidate import Candidate
from pliant.route.choice.energy import RadioModel


@final
class RadioUse:
    """One radio, by the router's clock: on during exchanges, then in its tail, then asleep.

    It waits for answers at `waiting_W` only once, however many are pending: each exchange pays its share of
    every moment. An exchange pays for waking and for its addition to the tail when it begins. The energies of
    all exchanges therefore add up to that of the radio, without the bytes (eq. 9 and Huang et al., MobiSys
    2012, Figure 1).
    """

    def __init__(self, model: RadioModel) -> None:
        self.model = model
        self._n = 0
        self._each_j = 0.0
        """What each pending exchange would have paid for waiting since the first one began."""
        self._at_s = self._ended_s = self._busy_until_s = float("-inf")

    def with_energy(self, way: Candidate, now_s: float) -> Candidate:
        """`way` with the energy that an exchange beginning now would add: 0 while the radio is on anyway."""
        tail_j = self.model.tail_j(self._idle_s(now_s))
        free_s = max(self._busy_until_s - now_s, 0.0) if self._n else 0.0
        if not tail_j and not free_s:
            return way
        return replace(way, fixed_j=way.fixed_j + tail_j, free_s=free_s)

    def begin(self, away_s: float, now_s: float) -> float:
        """Begin an exchange of expected duration `away_s`; return the joules that `end` is to subtract."""
        tail_j = self.model.tail_j(self._idle_s(now_s))
        self._advance(now_s)
        self._n += 1
        self._busy_until_s = max(self._busy_until_s, now_s + away_s)
        return self._each_j - tail_j

    def end(self, before_j: float, now_s: float) -> float:
        """End an exchange, for which `begin` returned `before_j`; return its energy, without its bytes."""
        self._advance(now_s)
        spent_j = self._each_j - before_j
        self._n -= 1
        if not self._n:
            self._each_j, self._ended_s, self._busy_until_s = 0.0, self._at_s, float("-inf")
        return spent_j

    def _idle_s(self, now_s: float) -> float:
        return 0.0 if self._n else max(now_s - self._ended_s, 0.0)

    def _advance(self, now_s: float) -> None:
        now_s = max(now_s, self._at_s)
        if self._n:
            self._each_j += self.model.waiting_W * (now_s - self._at_s) / self._n
        self._at_s = now_s


@final
class RadioTail:
    """Waking and tail of a radio whose exchanges follow one another: those of a cluster's device, run by run.

    `add` must not be called concurrently.
    """

    def __init__(self, model: RadioModel) -> None:
        self.model = model
        self._ended_s = float("-inf")

    def joules(self, now_s: float) -> float:
        """Return the energy of waking and tail that exchanges from now on would add."""
        return self.model.tail_j(max(now_s - self._ended_s, 0.0))

    def add(self, began_s: float, ended_s: float) -> float:
        """Record a run's exchanges, from the first to the last, and return what they added."""
        joules = self.joules(began_s)
        self._ended_s = max(self._ended_s, ended_s)
        return joules
