"""The quantity that a choice minimises: time, energy, or a mix (`--objective time|energy|mix:0.3`)."""

from dataclasses import dataclass
from math import isfinite

from pliant.errors import InputError, RouteError

_MIX = "mix:"


@dataclass(frozen=True, slots=True)
class Objective:
    """The weights of a second and a joule; the least sum wins."""

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
    """Parse `time`, `energy`, or `mix:W`: (1 - W) * seconds + W * joules, W in 0..1. Raises InputError."""
    text = str(text)  # users may give any value
    named = {"time": TIME, "energy": ENERGY}.get(text)
    if named is not None:
        return named
    try:
        weight = float(text.removeprefix(_MIX)) if text.startswith(_MIX) else -1.0
    except ValueError:
        weight = -1.0
    if not 0.0 <= weight <= 1.0:
        raise InputError(
            f"{text!r:.40} is not an objective: give time, energy, or mix:W with W, the weight of energy, "
            "from 0 to 1, such as mix:0.3."
        )
    return Objective(1.0 - weight, weight)


def own_objective(text: str | None, counts_joules: bool) -> Objective | None:
    """Parse the objective that a request names, if any; `counts_joules` says whether this device counts them.

    Raises InputError, also for joules on a device that does not count them.
    """
    objective = None if text is None else parse_objective(text)
    if objective is not None and objective.per_joule and not counts_joules:
        raise InputError(
            f"the objective {text!r:.40} counts joules, but the power of this device is not known: give it "
            "with `pliant node --power` or `Routing(power=...)`, or use the objective `time`."
        )
    return objective
