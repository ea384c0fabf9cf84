"""Run a session's model on the primary that it shares: plans, what a run needs first, what it took."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from pliant.cluster.lead.lead_run import RunRecord
from pliant.cluster.lead.open_member import PrimaryMember
from pliant.cluster.lead.predict import Prediction
from pliant.cluster.session.cluster_batches import packed_rows
from pliant.cluster.session.cluster_details import ClusterDetails, details_of
from pliant.cluster.session.cluster_levels import Availability, ClusterLevels
from pliant.cluster.session.length_reach import LengthReach
from pliant.cluster.session.plan_readiness import PlanReadiness, is_ready
from pliant.cluster.session.shared_primary import SharedPrimary
from pliant.cluster.watch.adapt import Topology
from pliant.errors import BudgetError, InputError
from pliant.ir.reply import Reply
from pliant.ir.times.bounds import AdaptiveBound
from pliant.ir.times.limited_levels import check_length
from pliant.ir.times.timing import Timing
from pliant.models.encoder.encoder_architecture import Feeds, PreparedInput
from pliant.models.encoder.encoder_source import Encoder
from pliant.plan.submodel.mixed_bits_accuracy import MixedBitsAccuracy
from pliant.run.batches.text_batches import MOST_ROWS


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """The answers of inputs that ran together, with the rows of each.

    The run began after `waited_s`, and ended at `end_s` by `time.perf_counter`; `loaded_s` of its seconds
    made devices ready for its rows.
    """

    answers: tuple[np.ndarray, ...]
    lengths: tuple[int, ...]
    details: ClusterDetails
    accuracy: float | None
    waited_s: float
    loaded_s: float
    end_s: float

    def replies(
        self,
        endpoint: str,
        starts_s: Sequence[float],
        target_s: float | None,
        outputs_of: Callable[[np.ndarray], Mapping[str, Any]],
    ) -> list[Reply[ClusterDetails]]:
        """Return a reply to each input, asked for at one of `starts_s`; `outputs_of` gives its outputs."""
        return [
            Reply(
                endpoint=endpoint,
                seconds=self.end_s - start_s,
                details=self.details,
                length=length,
                waited_s=self.waited_s,
                loaded_s=self.loaded_s,
                target_s=target_s,
                accuracy=self.accuracy,
                **outputs_of(np.asarray(answer, np.float32)),
            )
            for length, start_s, answer in zip(self.lengths, starts_s, self.answers, strict=True)
        ]


@final
class ClusterRunner:
    """Runs `encoder` and its submodels for the session of this `name`, until `close`.

    Thread-safe; runs take turns with those of other sessions. `bound` judges predictions by the runs of
    single inputs. `promised` is the least accuracy of plans for any length, or of a run that was less
    accurate; None if unmeasured. `longest` are the most rows of a run.
    """

    def __init__(
        self, name: str, encoder: Encoder, primary: SharedPrimary, accuracy: MixedBitsAccuracy | None
    ) -> None:
        self._name, self._encoder, self._primary, self._accuracy = name, encoder, primary, accuracy
        self.bound, self.reach, self._readiness = AdaptiveBound(), LengthReach(), PlanReadiness()
        self.availability = Availability()
        self.promised: float | None = None
        self.longest = 0
        self.is_closed = self.is_followed = False

    @property
    def most_rows(self) -> int:
        """Rows of the longest input that the model takes and that there is memory for."""
        most_n, max_rows = self.reach.most_n, self._encoder.spec.max_rows
        return max_rows if most_n is None else min(most_n, max_rows)

    @property
    def most_rows_together(self) -> int:
        """Rows of a batch; 0 if inputs run alone: of a model without texts, or as a worker's release does."""
        encoder = self._encoder
        is_able = encoder.limits is not None and self._primary.packs_texts(encoder.identity)
        return min(MOST_ROWS, self.most_rows) if is_able else 0

    def must_plan_again(self, topology: Topology) -> bool:
        """Return whether memory has changed too much for the latest plans, or a run has failed since."""
        return self.availability.is_doubted or self.reach.is_stale(topology)

    def search_reach(self) -> int:
        """Return the longest input that there is memory for, and keep its plan for others without one."""
        longest = self.reach.search(self._encoder.spec, self.predict)
        self._primary.leader.planner.found.keep(self._encoder.spec, longest)
        return longest.tokens

    def compiling(self, levels: ClusterLevels, i: int, n: int) -> Timing | None:
        """Return the expected time to make devices ready for length n of level `i`; None if they are."""
        planned = levels.planned[i] if i < len(levels.planned) else {}
        return self._readiness.expected(self._primary.leader.planner, levels.sources[i], n, planned)

    def run(
        self, feeds: Sequence[Feeds], source: Encoder | None = None, *, is_alone: bool = False
    ) -> ClusterRun:
        """Run inputs together, by the model or its submodel `source`; `is_alone` excludes all workers.

        Raises BudgetError if there is no memory for their rows; for one input with the longest that there is
        memory for.
        """
        source = source or self._encoder
        inputs = [self._encoder.prepare(one) for one in feeds]
        lengths = tuple(one.rows for one in inputs)
        asked_s = time.perf_counter()
        with self._primary.exclusive() as leader:
            self._check_open()
            waited_s, rows = time.perf_counter() - asked_s, packed_rows(lengths, self.most_rows)
            was_ready = is_ready(leader.planner, source, rows)
            with self.availability.running(is_known=rows > self.most_rows):
                led = self._lead(leader, source, inputs, rows, is_alone)
            end_s = time.perf_counter()
            details = details_of(led, leader.planner, self._primary.margins)
            if not was_ready:
                self._readiness.observe(led.begin_s, leader.planner.inputs_of(led.plans[0]).load_s)
            if len(inputs) == 1:
                self.bound.observe(Timing(details.predicted_s, details.predicted_s), details.run_s)
            accuracy = None if self._accuracy is None else self._accuracy.at(details.partitions[1:-1])
            if source is self._encoder and accuracy is not None and self.promised is not None:
                self.promised = min(self.promised, accuracy)
            self.longest = max(sum(lengths), self.longest)
        # The input and the head of several texts may be compiled for new lengths beside a plan that is ready.
        loaded_s = 0.0 if was_ready and len(inputs) == 1 else led.begin_s
        return ClusterRun(led.answers, lengths, details, accuracy, waited_s, loaded_s, end_s)

    def predict(self, length: int, source: Encoder | None = None) -> Prediction:
        """Return the plan of an input of so many rows; measures what is missing, and loads nothing.

        If `is_followed`, runs do not include new devices until they are measured here.
        """
        with self._primary.exclusive() as leader:
            self._check_open()
            leader.planner.measure(source or self._encoder, length, is_beside=self.is_followed)
            return leader.planner.solve((source or self._encoder).spec, length)

    def close(self) -> None:
        """Free the model's weights on all members, after a running answer. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self._primary.forget(self._encoder)
            self._encoder.release()

    def _check_open(self) -> None:
        if self.is_closed:
            raise InputError("this session is closed; ask the cluster to open the model again.")

    def _lead(
        self, leader: PrimaryMember, source: Encoder, inputs: list[PreparedInput], rows: int, is_alone: bool
    ) -> RunRecord:
        try:
            return leader.lead.run(source, inputs, rows, is_alone=is_alone)
        except BudgetError as error:
            if source is not self._encoder or is_alone:
                raise
            self.reach.refuse(rows)
            try:
                check_length(self._name, rows, self.reach.most_n)
            except BudgetError as limited:
                raise limited from error
            raise
