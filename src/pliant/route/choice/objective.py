"""The quantity that a choice minimises: time, energy, or a mix (`--objective time|energy|mix:0.3`)."""

from dataclasses import dataclass
from math import isfinite

from pliant.errors import RouteError

_MIX = "mix:"


@dataclass(frozen=True, slots=True)
class Objective:
    """The weights of a second and a joule; the least sum wins. Only the source's joules count (CRIME 4.4)."""

    per_second: float = 1.0
    per_joule: float = 0.0

    def __post_init__(self) -> None:
        weights = (self.per_second, self.per_joule)
        if not all(weight >= 0 and isfinite(weight) for weight in weights) or not any(weights):
            raise RouteError(
                f"an objective of {self.per_second} per second and {self.per_joule} per joule ranks nothing: "
                "give weights >= 0, one of them above 0."
            )


TIME = Objective()
ENERGY = Objective(0.0, 1.0)


def parse_objective(text: str) -> Objective:
    """Parse `time`, `energy`, or `mix:W`: (1 - W) * seconds + W * joules, W in 0..1. Raises RouteError."""
    named = {"time": TIME, "energy": ENERGY}.get(text)
    if named is not None:
        return named
    try:
        weight = float(text.removeprefix(_MIX)) if text.startswith(_MIX) else -1.0
    except ValueError:
        weight = -1.0
    if not 0.0 <= weight <= 1.0:
        raise RouteError(
            f"{text!r:.40} is not an objective: give time, energy, or mix:W with W, the weight of energy, "
            "from 0 to 1, such as mix:0.3."
        )
    return Objective(1.0 - weight, weight)
