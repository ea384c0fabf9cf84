"""The energy that computing and sending take from a battery (CRIME 4.4, eq. 8 and 9), with sources."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pliant.errors import RouteError
from pliant.ir.endpoint import ServiceLevel
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.choice.crowding import Crowding

_MEGABIT_BYTES = 125_000.0


@dataclass(frozen=True, slots=True)
class PowerModel:
    """The power of a device: `idle_W`, plus `compute_W` while it answers, at every length (Figure 8)."""

    name: str
    idle_W: float
    compute_W: float
    source: str

    def __post_init__(self) -> None:
        _check(self.name, self.idle_W, self.compute_W)


@dataclass(frozen=True, slots=True)
class RadioModel:
    """A radio: joules per megabit up and down (equal to W per Mbit/s), and `waiting_W` until the answer.

    After the last packet the radio stays on for `tail_s` at `tail_W`; from idle it takes `wake_s` at `wake_W`
    to start. Inputs in quick succession share these, so eq. 9 omits them (`without_tail`); `tail_j` is what
    an exchange adds, depending on the time since the previous one, which `RadioUse` tracks.
    """

    name: str
    up_J_per_Mbit: float
    down_J_per_Mbit: float
    waiting_W: float
    source: str
    tail_W: float = 0.0
    tail_s: float = 0.0
    wake_W: float = 0.0
    wake_s: float = 0.0

    def __post_init__(self) -> None:
        _check(self.name, self.up_J_per_Mbit, self.down_J_per_Mbit, self.waiting_W)
        _check(self.name, self.tail_W, self.tail_s, self.wake_W, self.wake_s)

    def transfer_j(self, sent_bytes: float, received_bytes: float) -> float:
        """Return E_tx0 of eq. 9: the energy of the bytes themselves."""
        return (self.up_J_per_Mbit * sent_bytes + self.down_J_per_Mbit * received_bytes) / _MEGABIT_BYTES

    def without_tail(self) -> "RadioModel":
        """Return the model of eq. 9, without waking and tail."""
        return replace(self, tail_W=0.0, tail_s=0.0, wake_W=0.0, wake_s=0.0)

    def tail_j(self, idle_s: float) -> float:
        """Return the energy of waking and tail for an exchange that begins `idle_s` after the last one ended.

        Within the tail of the last exchange, it extends that tail by `idle_s`; afterwards the radio must
        wake, and a full tail follows. Infinity means that there was no exchange before.
        """
        if idle_s <= self.tail_s:
            return self.tail_W * idle_s
        return self.tail_W * self.tail_s + self.wake_W * self.wake_s


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """One device's work for an answer: it computes for `busy_s`, and sends and receives bytes.

    Its radio is on for `away_s`: from the begin of its first exchange to the end of its last. A device
    without `power` or `radio` runs on mains, or is connected by cable: that part counts as 0.
    """

    busy_s: float
    power: PowerModel | None = None
    sent_bytes: float = 0.0
    received_bytes: float = 0.0
    radio: RadioModel | None = None
    away_s: float = 0.0

    @property
    def timed_j(self) -> float:
        """The energy above idle while it computes (eq. 8), and of its radio while on (P_tx of eq. 9)."""
        computed_j = 0.0 if self.power is None else self.power.compute_W * self.busy_s
        return computed_j + (0.0 if self.radio is None else self.radio.waiting_W * self.away_s)

    @property
    def transfer_j(self) -> float:
        """The energy of its own bytes (E_tx0 of eq. 9)."""
        return 0.0 if self.radio is None else self.radio.transfer_j(self.sent_bytes, self.received_bytes)

    def joules(self) -> float:
        """Both together: eq. 8 and 9, without waking and tail."""
        return self.timed_j + self.transfer_j


def cluster_joules(works: Iterable[DeviceWork]) -> float:
    """Return the energy of all devices of a cluster for one answer: the sum, as they work concurrently."""
    return sum(work.joules() for work in works)


_CRIME = "CRIME (Jahier Pagliari et al. 2021), Figure 8: ARM Cortex-A53 at 1.2 GHz, measured at a shunt"
_LTE = (
    "Huang et al., A close examination of performance and power characteristics of 4G LTE networks, "
    "MobiSys 2012: Table 4 (alpha_u, alpha_d, beta), Table 3 (promotion, tail)"
)


def local_candidate(
    levels: tuple[ServiceLevel, ...],
    wait_s: float,
    watts: float,
    name: str = LOCAL,
    crowding: Crowding | None = None,
    tail_j: float = 0.0,
) -> Candidate:
    """Return this device by eq. 8: `watts` above idle while it computes, not while it waits.

    `tail_j` is for a cluster whose devices exchange by radio, as in `Candidate`.
    """
    return Candidate(name, levels, wait_s, watts=watts, free_s=wait_s, crowding=crowding, tail_j=tail_j)


def remote_candidate(
    name: str,
    levels: tuple[ServiceLevel, ...],
    transfer: tuple[float, float],
    bytes_there: tuple[float, float],
    bytes_back: tuple[float, float],
    radio: RadioModel | None,
    way_bound: float = 1.0,
) -> Candidate:
    """Return a successor by eq. 9; `transfer` and bytes are (fixed, per item) of the input's length.

    The energy that its exchange adds to the radio's tail depends on the time: see `RadioUse.with_energy`.
    """
    if radio is None:
        return Candidate(name, levels, *transfer, way_bound=way_bound)
    fixed_j = radio.transfer_j(bytes_there[0], bytes_back[0])
    per_item_j = radio.transfer_j(bytes_there[1], bytes_back[1])
    return Candidate(name, levels, *transfer, fixed_j, per_item_j, radio.waiting_W, way_bound)


def _check(name: str, *values: float) -> None:
    if not all(0.0 <= v < float("inf") for v in values):
        raise RouteError(f"the power model {name} has values {values}; powers and energies are >= 0.")


A53_COVE = PowerModel("cortex-a53, CoVe", 1.81, 1.00, _CRIME)
A53_IMDB = PowerModel("cortex-a53, IMDB", 1.81, 0.91, _CRIME)
LTE = RadioModel("lte", 0.43839, 0.05197, 1.28804, _LTE, 1.060, 11.576, 1.2107, 0.2601)
