"""The options of planning: pliant's defaults and the paper's."""

from dataclasses import dataclass
from typing import Literal

from pliant.errors import BudgetError
from pliant.plan.submodel.io_plan import EQUAL_POPULATION_ERRORS, LLOYD_ERRORS
from pliant.plan.submodel.preload_set import PreloadRule

ChoiceRule = Literal["accuracy", "size"]
Depths = Literal["trained", "any"]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Planning options. The defaults are pliant's; `PAPER` is STI as published.

    `choose`: "accuracy" takes the submodel of the highest expected accuracy if an accuracy grid was measured,
    "size" (the paper) the one with most shards.
    `depths`: "trained" allows n x m submodels that the model was trained for or whose accuracy was measured,
    "any" (the paper) every depth: an ordinary model then skips layers, at any loss of accuracy.
    `similar`: numbers of shards within this fraction count as similar (STI 5.3).
    `slack`: "all" lets loads use the time that compute leaves of the target, "none" (the paper) only the
    compulsory stall of the first layer.
    `uses_lead`: loads may run while the input is embedded.
    `preload`: what to keep (see `PreloadRule`).
    `allocate`: "paper" raises single shards to the highest bits in order of importance, "rows" finds the
    least weighted error among a fixed set of rows for each layer (see `bit_rows.fill_rows`), "exact" among
    all bits (a reference: takes seconds, not milliseconds). With "rows" and the preload rule "first", an
    anytime plan is never worse for a longer target, a larger preload buffer, or more planes held in that
    buffer's order, except under a limit on the working memory.
    `is_anytime`: run without late refinements.
    `best_effort`: for an infeasible target, take the smallest submodel.
    `margin`: fraction of the target kept free.
    `patience`: see `assemble`.
    `io_reserve`: base planes must be in time even if reads take this many times their 95th percentile; None
    derives it from the spread of reads (see `reserve.io_reserve`). Used for anytime plans only.
    `errors`: weight error at 0..6 planes, relative to the weights' variance.
    """

    choose: ChoiceRule = "accuracy"
    depths: Depths = "trained"
    similar: float = 0.1
    slack: Literal["all", "none"] = "all"
    uses_lead: bool = True
    preload: PreloadRule = "first"
    allocate: Literal["paper", "rows", "exact"] = "rows"
    is_anytime: bool = True
    best_effort: bool = False
    margin: float = 0.0
    patience: float = 0.5
    io_reserve: float | None = None
    errors: tuple[float, ...] = LLOYD_ERRORS

    def __post_init__(self) -> None:
        if not (0 <= self.similar < 1 and 0 <= self.margin < 1 and 0 <= self.patience <= 1):
            raise BudgetError("similar and margin lie in [0, 1), patience in [0, 1]; got "
                              f"{self.similar}, {self.margin}, {self.patience}.")  # fmt: skip
        if self.io_reserve is not None and not 1 <= self.io_reserve < float("inf"):
            raise BudgetError(f"an IO reserve is a factor of at least 1, not {self.io_reserve}.")

    @property
    def reserve(self) -> float:
        """The IO reserve as a factor: 1 if plans are not anytime, or if it is unknown."""
        return self.io_reserve if self.is_anytime and self.io_reserve is not None else 1.0


OURS = PlanOptions()
PAPER = PlanOptions(
    choose="size",
    depths="any",
    slack="none",
    uses_lead=False,
    preload="shards",
    allocate="paper",
    is_anytime=False,
    errors=EQUAL_POPULATION_ERRORS,
)
