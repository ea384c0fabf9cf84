"""The energy that computing and sending take from a battery (CRIME 4.4, eq. 8 and 9), with sources."""

from dataclasses import dataclass

from pliant.errors import RouteError
from pliant.ir.curve import Curve
from pliant.route.choose_endpoint import LOCAL, Candidate

_MEGABIT_BYTES = 125_000.0


@dataclass(frozen=True, slots=True)
class PowerModel:
    """A device at work: `idle_W`, and `compute_W` more while it answers, at every length (Figure 8)."""

    name: str
    idle_W: float
    compute_W: float
    source: str

    def __post_init__(self) -> None:
        _check(self.name, self.idle_W, self.compute_W)


@dataclass(frozen=True, slots=True)
class RadioModel:
    """A radio: joules per megabit up and down (a power per Mbit/s is that), and `waiting_W` until the answer.

    After the last packet the radio stays on for `tail_s` at `tail_W`, and from idle it takes `wake_s` at
    `wake_W` to get going. Inputs in quick succession share these, so eq. 9 leaves them out; `isolated_j` is
    what they add where an input comes alone.
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
        """E_tx0 of eq. 9: what the bytes themselves cost."""
        return (self.up_J_per_Mbit * sent_bytes + self.down_J_per_Mbit * received_bytes) / _MEGABIT_BYTES

    @property
    def isolated_j(self) -> float:
        """Waking and tail of one exchange that has no neighbours."""
        return self.tail_W * self.tail_s + self.wake_W * self.wake_s


_CRIME = "CRIME (Jahier Pagliari et al. 2021), Figure 8: ARM Cortex-A53 at 1.2 GHz, measured at a shunt"
_LTE = (
    "Huang et al., A close examination of performance and power characteristics of 4G LTE networks, "
    "MobiSys 2012: Table 4 (alpha_u, alpha_d, beta), Table 3 (promotion, tail)"
)


def local_candidate(curve: Curve, wait_s: float, power: PowerModel | None) -> Candidate:
    """This device by eq. 8: the increment over what it spends idle, while it computes, not while it waits."""
    watts = power.compute_W if power is not None else 0.0
    return Candidate(LOCAL, curve, wait_s, fixed_j=-watts * wait_s, watts=watts)


def remote_candidate(
    name: str,
    curve: Curve,
    transfer: tuple[float, float],
    bytes_there: tuple[float, float],
    bytes_back: tuple[float, float],
    radio: RadioModel | None,
) -> Candidate:
    """A successor by eq. 9; `transfer` and bytes are (fixed, per item) of the input's length."""
    if radio is None:
        return Candidate(name, curve, transfer[0], transfer[1])
    fixed_j = radio.transfer_j(bytes_there[0], bytes_back[0])
    per_item_j = radio.transfer_j(bytes_there[1], bytes_back[1])
    return Candidate(name, curve, transfer[0], transfer[1], fixed_j, per_item_j, radio.waiting_W)


def _check(name: str, *values: float) -> None:
    if not all(0.0 <= v < float("inf") for v in values):
        raise RouteError(f"the power model {name} has values {values}; powers and energies are >= 0.")


A53_COVE = PowerModel("cortex-a53, CoVe", 1.81, 1.00, _CRIME)
A53_IMDB = PowerModel("cortex-a53, IMDB", 1.81, 0.91, _CRIME)
LTE = RadioModel("lte", 0.43839, 0.05197, 1.28804, _LTE, 1.060, 11.576, 1.2107, 0.2601)
