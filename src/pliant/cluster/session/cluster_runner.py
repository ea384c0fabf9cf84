"""Run a session's model on its cluster: what a run needs first, what it may not need, what it took."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from pliant.cluster.lead.lead_run import RunRecord
from pliant.cluster.lead.open_member import PrimaryMember
from pliant.cluster.lead.predict import Prediction
from pliant.cluster.session.cluster_details import ClusterDetails, details_of
from pliant.cluster.session.cluster_levels import ClusterLevels
from pliant.cluster.session.length_reach import LengthReach
from pliant.cluster.session.plan_readiness import PlanReadiness, is_ready
from pliant.cluster.session.shared_primary import SharedPrimary
from pliant.errors import BudgetError
from pliant.ir.times.bounds import AdaptiveBound
from pliant.ir.times.limited_levels import check_length
from pliant.ir.times.timing import Timing
from pliant.models.encoder.encoder_architecture import PreparedInput
from pliant.models.encoder.encoder_source import Encoder


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A run that began after `waited_s` and ended at clock time `ended_s`.

    `ready_s` of its seconds made devices ready for its length.
    """

    led: RunRecord
    details: ClusterDetails
    waited_s: float
    ready_s: float
    ended_s: float


@final
class ClusterRunner:
    """Runs `encoder` and its submodels for the session of this `name`; thread-safe, one run at a time."""

    def __init__(self, name: str, encoder: Encoder, primary: SharedPrimary) -> None:
        self._name, self._encoder, self._primary = name, encoder, primary
        self.bound, self.reach, self._readiness = AdaptiveBound(), LengthReach(), PlanReadiness()

    def search_reach(self, solve: Callable[[int], Prediction]) -> int:
        """Return the longest input that there is memory for, and keep its plan for others without one."""
        longest = self.reach.search(self._encoder.spec, solve)
        self._primary.leader.planner.found.keep(self._encoder.spec, longest)
        return longest.tokens

    def compiling(self, levels: ClusterLevels, i: int, n: int) -> Timing | None:
        """Return the expected time to make devices ready for length n of level `i`; None if they are."""
        planned = levels.planned[i] if i < len(levels.planned) else {}
        return self._readiness.expected(self._primary.leader.planner, levels.sources[i], n, planned)

    def run(
        self, source: Encoder, prepared: PreparedInput, check: Callable[[], None], *, is_alone: bool
    ) -> ClusterRun:
        """Run the model or a submodel; `check` is called when it is this run's turn.

        Raises BudgetError, with the longest input that there is memory for, if there is none for this one.
        """
        asked_s = time.perf_counter()
        with self._primary.exclusive() as leader:
            check()
            waited_s, n = time.perf_counter() - asked_s, prepared.rows
            was_ready = is_ready(leader.planner, source, n)
            led = self._lead(leader, source, prepared, is_alone)
            ended_s = time.perf_counter()
            if not was_ready:
                self._readiness.observe(led.begin_s, leader.planner.inputs_of(led.plans[0]).load_s)
            details = details_of(led, leader.planner, self._primary.margins)
            self.bound.observe(Timing(details.predicted_s, details.predicted_s), details.run_s)
        return ClusterRun(led, details, waited_s, 0.0 if was_ready else led.begin_s, ended_s)

    def _lead(
        self, leader: PrimaryMember, source: Encoder, prepared: PreparedInput, is_alone: bool
    ) -> RunRecord:
        n = prepared.rows
        try:
            return leader.lead.run(source, n, prepared.feeds, is_alone=is_alone)
        except BudgetError as error:
            if source is not self._encoder or is_alone:
                raise
            self.reach.refuse(n)
            try:
                check_length(self._name, n, self.reach.most_n)
            except BudgetError as limited:
                raise limited from error
            raise
