"""A model on a cluster: a session that answers texts or arrays with all usable devices."""

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final, overload

import numpy as np

from pliant.cluster.lead.explain_partition import explain
from pliant.cluster.lead.status_report import ClusterStatus
from pliant.cluster.session import cluster_levels
from pliant.cluster.session.cluster_batches import MOST_TOGETHER, answer_in_batches, joint_request
from pliant.cluster.session.cluster_details import ClusterDetails
from pliant.cluster.session.cluster_feeds import TimedFeeds, feeds_of, input_ports, open_items, read_feeds
from pliant.cluster.session.cluster_plan import ClusterPlan, plan_of
from pliant.cluster.session.cluster_runner import ClusterRunner
from pliant.cluster.session.shared_primary import SharedPrimary
from pliant.errors import BudgetError, InputError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import Estimate, Request, ServiceLevel
from pliant.ir.port import Port
from pliant.ir.reply import Reply
from pliant.ir.times.bounded_level import scale_curve
from pliant.ir.times.limited_levels import check_length
from pliant.ir.times.timing import Timing
from pliant.models.encoder.encoder_architecture import Feeds
from pliant.models.encoder.encoder_source import Encoder
from pliant.models.tokenizer import TokenizedInput
from pliant.plan.submodel.mixed_bits_accuracy import MixedBitsAccuracy
from pliant.quantities import format_seconds, format_seconds_up, parse_seconds
from pliant.run.memory_use import MemoryNeed, MemoryUse
from pliant.run.session.feeds import FeedsLike
from pliant.run.session.ports import copy_into
from pliant.run.session.text_session import TextInput, Texts, TextSession
from pliant.run.submodel.request_plans import batch_key

if TYPE_CHECKING:
    from pliant.run.session.program_profile import ProgramProfile

_LENGTH = 128  # of the plan that is shown before any request
_OTHER = 1.5  # if a run's prediction changes by this factor against the earlier one, another plan runs
_PROBE_APART = 3.0  # in times of the whole model's answers


@final
class ClusterSession(TextSession[ClusterDetails]):
    """An encoder whose layers are split over the devices of a cluster; opened by `Cluster.open`.

    A model with a tokenizer reads texts; any text model reads `ids` INT64 [1, n], and `types` beside them
    if it has types; ViT `pixels` FP32 [1, channels, height, width]; Whisper `mel` FP32 [1, bins, frames].
    A classifier gives `logits` FP32 [1, labels] and `label` BYTES [1]; another text model `vector` FP32 [1,
    features]; a model without a head `answer` FP32 [1, rows, hidden]. Lengths are rows of the encoder:
    tokens, patches, or pairs of frames.

    If a worker fails, the layer that it failed in is repeated. Closing the session leaves the cluster open.
    Use in a forked child raises ClusterError.
    """

    platform = "pliant_cluster"
    degree: ClassVar[Literal[1, 2]] = 2
    most_together = MOST_TOGETHER

    def __init__(
        self,
        name: str,
        identity: str,
        encoder: Encoder,
        primary: SharedPrimary,
        accuracy: MixedBitsAccuracy | None = None,
    ) -> None:
        super().__init__(
            name,
            identity,
            labels=encoder.labels,
            features=encoder.spec.hidden,
            max_length=encoder.spec.max_rows,
            vocab=0 if encoder.limits is None else encoder.limits.vocab,
        )
        self.encoder, self._primary, self._accuracy = encoder, primary, accuracy
        self._runner = ClusterRunner(name, encoder, primary, accuracy)
        self._submodels = cluster_levels.submodels(encoder, accuracy)
        self.planned_levels = cluster_levels.ClusterLevels(encoder, Curve(((0, 0.0),)))
        """The levels of the latest plans; another object after each planning."""
        self._tokenizer = encoder.open_tokenizer() if encoder.reads_text else None
        self.inputs = input_ports(encoder)
        if encoder.answers[0] == "hidden":
            self.outputs = (Port("answer", "float32", (1, None, encoder.spec.hidden)),)
        self._used: set[Encoder] = {encoder}
        self._target_s: float | None = None
        self._delays, self._is_open_ended = cluster_levels.AnswerDelays(), not self.inputs[-1].is_static
        self._length = min(_LENGTH, self.max_length) if self._is_open_ended else self.max_length
        self._workers: tuple[str, ...] | None = ()
        self._probed_s, self._prior = -inf, Curve(((0, 0.0),))
        self._is_probe = self._is_stale = False
        self._max_items = open_items(self.inputs[-1], self.sample(self.max_length))

    @property
    def is_closed(self) -> bool:
        return self._runner.is_closed

    def __repr__(self) -> str:
        return f"<ClusterSession of {self.name}, {'closed' if self.is_closed else self._primary.name}>"

    # For users

    @overload
    def __call__(
        self, value: Texts, pair: None = None, *, latency: str | float | None = None
    ) -> list[Reply[ClusterDetails]]: ...

    @overload
    def __call__(
        self, value: str | FeedsLike, pair: str | None = None, *, latency: str | float | None = None
    ) -> Reply[ClusterDetails]: ...

    def __call__(
        self,
        value: str | Texts | FeedsLike,
        pair: str | None = None,
        *,
        latency: str | float | None = None,
    ) -> Reply[ClusterDetails] | list[Reply[ClusterDetails]]:
        """Answer a text, a pair of texts, feeds by name, or a list of texts or pairs together.

        `latency` is a target for this call only. Raises InputError for input that does not fit the model.
        """
        if not isinstance(value, Mapping):
            return super().__call__(value, pair, latency=latency)  # type: ignore[arg-type] # it checks them
        return self._answer_given(value, pair, latency)

    def alone(
        self, value: str | FeedsLike, pair: str | None = None, *, latency: str | float | None = None
    ) -> Reply[ClusterDetails]:
        """Answer on the primary without its workers, as a reference for split runs."""
        return self._answer_given(value, pair, latency, is_alone=True)

    @property
    def plan(self) -> ClusterPlan:
        """The plan of inputs as long as the latest, under the session's latency."""
        return self.plan_at(self._length)

    def plan_at(self, length: int, latency: str | float | None = None) -> ClusterPlan:
        """Return the current plan for an input of so many rows; `latency` or the session's judges it.

        Measures unmeasured devices and links (seconds); loads nothing. Raises InputError for an invalid
        length.
        """
        solved = self._runner.predict(length)
        return plan_of(self.encoder.spec, solved, self._runner.bound, self._target_of(latency))

    def explain(self, length: int, latency: str | float | None = None) -> ClusterPlan:
        """Like `plan_at`, with reasons: each mode's time, single devices', memory, savings; slower."""
        spec, primary, solved = self.encoder.spec, self._primary, self._runner.predict(length)
        reasons = explain(spec, solved, primary.name, primary.margins.least_gain, primary.coding)
        return plan_of(spec, solved, self._runner.bound, self._target_of(latency), reasons)

    def retarget(self, latency: str | float) -> None:
        """Judge replies and plans by another latency.

        No plan changes: the fastest plan found always runs. Raises BudgetError, changing nothing, if more
        than 5 of 100 inputs as long as the latest are predicted to take longer.
        """
        if latency is None:
            raise InputError("there is nothing to change: give latency, such as '20ms'.")
        target_s = parse_seconds(latency)
        plan = self.plan_at(self._length, target_s)
        if not plan.met:
            raise BudgetError(
                f"no plan of {self.name} for {self._length} rows keeps {format_seconds(target_s)}: the "
                f"quickest needs {format_seconds_up(plan.bound_s)} for 95 of 100 runs. Raise the latency, or "
                "let more workers join."
            )
        self._target_s = target_s

    def profile(self, feeds: FeedsLike, runs: int = 20) -> "ProgramProfile":
        """Return predicted and measured steps on every device, over `runs` runs after one warm-up run."""
        from pliant.run.session.program_profile import profile_of  # draws tables, which no answer needs

        if runs < 1:
            raise InputError(f"a profile of {runs} runs measures nothing; give at least 1.")
        replies = [self(feeds) for _ in range(runs + 1)][1:]
        n_devices = len(replies[-1].details.partitions[-1].participants)
        return profile_of(replies, "1 device" if n_devices == 1 else f"{n_devices} devices")

    @property
    def weight_bytes(self) -> int:
        return self._primary.leader.builder.bytes_of(self.encoder)

    @property
    def memory(self) -> MemoryUse:
        """The model's memory on the primary, including weights; `plan.weight_bytes` covers all devices."""
        return self._primary.leader.builder.memory_of(self.encoder)

    def encode(self, text: str, pair: str | None = None) -> TokenizedInput:
        """Return the tokens of a text or a pair. Raises InputError if the model does not read this text."""
        return (self._tokenizer or self.encoder.open_tokenizer()).encode(text, pair)

    def truncate(self, text: str, pair: str | None = None) -> tuple[str, str | None]:
        """Return the prefix of a text or a pair that fits the model. Raises as `encode` does."""
        return (self._tokenizer or self.encoder.open_tokenizer()).truncate(text, pair)

    def close(self) -> None:
        """Free the model's weights on all members, after a running answer. Idempotent."""
        self._runner.close()

    @property
    def max_items(self) -> int:
        """Maximum number of input items; Whisper reads two frames per row."""
        return self._max_items

    def status(self) -> ClusterStatus:
        """Return the runs, and every worker that ever joined, by name; thread-safe."""
        return self._primary.status()

    def dismiss(self, name: str) -> None:
        """Exclude a worker until it is readmitted; a run continues without it."""
        self._primary.dismiss(name)

    def readmit(self, name: str) -> None:
        """Allow a dismissed worker to join again."""
        self._primary.readmit(name)

    def request(self, feeds: FeedsLike) -> Request:
        """Return the request for `text`, or for arrays; tokenizes at once. Raises InputError."""
        read = read_feeds(self, feeds)
        return Request(self.encoder.rows(read), tensors=read)

    def sample(self, length: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Return random feeds of so many rows. Raises InputError for an unsupported length."""
        made, types = self.encoder.sample(length, seed), {port.name: port.dtype for port in self.inputs}
        return {name: array[None].astype(types[name], copy=False) for name, array in made.items()}

    @property
    def best(self) -> float | None:
        """Least accuracy of its plans for any length or `exchange`; None if unmeasured, or before `curve`."""
        return self._runner.promised

    def curve(self, accuracy_floor: float = 0.0) -> Curve:
        """Return seconds by rows: predicted by plans for some lengths, corrected by later answers.

        With a floor, those of the fastest submodel that reaches it. The first call measures unmeasured
        devices. Raises BudgetError.
        """
        if self._times is None:
            self._follow_workers()
        whole = super().curve(accuracy_floor)
        able = (level.curve for level in self.levels() if level.reaches(accuracy_floor))
        return next(able, whole) if accuracy_floor > 0.0 else whole

    def levels(self) -> tuple[ServiceLevel, ...]:
        """Return the submodels, worst first, and the whole model; out of reach if `look_again` failed."""
        return self._runner.availability.levels or self._limited.at(
            self.planned_levels.at(*self._level.at(self._expected_curve, self.best)), self.most_length()
        )

    def most_length(self, like: Request | None = None) -> int | None:
        return self._runner.reach.most_n

    def need(self, length: int, accuracy: float | None = None) -> MemoryNeed:
        return self._primary.leader.builder.need_of(self.encoder)

    def compiling(self, request: Request) -> Timing | None:
        i, plans = cluster_levels.pick_level(self.levels(), request), self.planned_levels
        return self._runner.compiling(plans, min(i, len(plans.sources) - 1), request.length)

    def estimate(self, request: Request) -> Estimate:
        """Return the estimate for the level that `answer` would choose now. Raises BudgetError."""
        self._runner.availability.check(is_planned=self._times is not None)
        self.curve(request.accuracy_floor or 0.0)
        levels, n = self.levels(), request.length
        check_length(self.name, n, self.most_length())
        level = levels[cluster_levels.pick_level(levels, request)]
        found = Estimate(level.curve.at(n), level.accuracy, level.bound_curve.at(n))
        return found.after(self.compiling(request))

    def look_again(self) -> None:
        """Predict times again if the usable workers, or the times of answers, changed. Raises BudgetError."""
        self._runner.is_followed = True
        with self._runner.availability.planning(is_planned=self._times is not None):
            self._follow_workers()

    def answer(self, request: Request) -> Reply[ClusterDetails]:
        """Return the reply to a request, by one of `levels`. Raises BudgetError for a floor.

        If plans changed, its time scales the other times until `look_again`.
        """
        return self.answers((request,))[0]

    @property
    def most_items_together(self) -> int:
        return self._runner.most_rows_together

    def together(self, request: Request) -> Hashable | None:
        return batch_key(request) if self.most_items_together else None

    def answers(self, requests: Sequence[Request]) -> list[Reply[ClusterDetails]]:
        """Return the replies to requests of one key: texts run together as the rows of one input.

        The level keeps the earliest deadline, by the curve at all rows, and the highest floor. Raises
        BudgetError for a floor.
        """
        lengths = [one.length for one in requests]
        return answer_in_batches(lengths, self.most_items_together, requests, self._answer_batch)

    def _answer_batch(self, requests: Sequence[Request]) -> list[Reply[ClusterDetails]]:
        request = joint_request(requests, self._runner.most_rows)
        self.curve(request.accuracy_floor or 0.0)
        levels = self.planned_levels  # another thread may replace them meanwhile
        told = levels.at(self._level.at(self._expected_curve, self.best)[-1])
        i = len(told) - 1 if self._is_probe else cluster_levels.pick_level(told, request)
        self._used.add(levels.sources[i])
        self._is_probe, start_s = False, time.perf_counter()
        feeds = (r.tensors if r.text is None else feeds_of(self.encode(r.text)) for r in requests)
        replies = self._infer([(one, start_s) for one in feeds], self._target_s, levels.sources[i])
        reply, whole_s = replies[0], None
        n, ready_s = reply.details.partitions[0].tokens, reply.seconds - reply.loaded_s
        with self._timing.lock:
            if len(replies) == 1:  # times by length are those of one input
                self._record_seconds(n, whole_s := levels.observe(i, n, told[i].curve.at(n), ready_s))
                self._delays.observe(reply.details.predicted_s, ready_s - reply.waited_s)
            self._is_stale |= (reply.accuracy or 1.0) < (told[i].accuracy or 0.0)  # plans have other bits
            ratio = reply.details.predicted_s / self._prior.at(n) if i == len(told) - 1 else 1.0
            if reply.details.switches or not 1 / _OTHER <= ratio <= _OTHER:
                self._prior, self._is_stale = scale_curve(self._prior, ratio), True
                self.expect(self._delays.over(self._prior), self._delays.spread(self._prior.at(self._length)))
        return [replace(reply, whole_s=whole_s) for reply in replies]

    def reconsider(self) -> bool:
        """Plan once more with slowed workers, and with splits that were slow when one was.

        The next answer uses the whole model, as submodels may not run on these; at most a third of the time.
        """
        levels, now_s = self.levels(), time.perf_counter()
        if len(levels) > 1 and now_s - self._probed_s < _PROBE_APART * levels[-1].curve.at(self._length):
            return False
        with self._primary.exclusive() as leader:
            is_slowed = leader.planner.reconsider()
            is_worse = self._primary.margins.forget()
        self._probed_s, self._is_probe = now_s, is_slowed or is_worse or self._level.is_slowed
        return self._is_probe

    def _target_of(self, latency: str | float | None) -> float | None:
        return self._target_s if latency is None else parse_seconds(latency)

    def _follow_workers(self) -> None:
        usable, is_first = self._primary.usable_workers(), self._times is None
        with self._primary.exclusive() as leader:
            new = leader.planner.newcomers(self.encoder)
            self._is_stale |= not is_first and self._runner.must_plan_again(leader.planner.topology)
        if is_first or new or self._is_stale or usable != self._workers:
            has_come = bool(new) or (not is_first and not {*usable} <= {*(self._workers or ())})
            self._workers, self._is_stale = None, False  # after an error, the next look follows again
            longest, is_open = inf if is_first else self._runner.longest, self._is_open_ended
            most = self._runner.search_reach() if is_open else self.max_length
            lengths, near = cluster_levels.lengths_to_plan(most, longest, is_open_ended=is_open)
            self._length = min(self._length, most)
            plans = {n: self._runner.predict(n) for n in near}
            self._prior = cluster_levels.times_of(plans, self._prior, lengths)
            self.expect(self._delays.over(self._prior), self._delays.spread(self._prior.at(self._length)))
            self.planned_levels = cluster_levels.levels_by(
                self.encoder, self._accuracy, self._submodels, plans, self._runner.predict, self._prior
            )
            self._runner.promised = self.planned_levels.promised
            for source in [x for x in self.planned_levels.sources if has_come and x in self._used]:
                with self._primary.exclusive() as leader:  # new workers load their weights now
                    leader.planner.begin(source, self._length, ())
            self._workers = usable

    def _answer_given(
        self, value: str | FeedsLike, pair: str | None, latency: str | float | None, is_alone: bool = False
    ) -> Reply[ClusterDetails]:
        start_s, target_s = time.perf_counter(), self._target_of(latency)
        inputs = [(read_feeds(self, value, pair), start_s)]
        return self._infer(inputs, target_s, is_alone=is_alone)[0]

    def _answers(self, asked: Sequence[TextInput], target_s: float | None) -> list[Reply[ClusterDetails]]:
        target_s = self._target_s if target_s is None else target_s
        inputs = [(feeds_of(one.encoded), one.start_s) for one in asked]
        lengths, most_rows = [one.encoded.n_tokens for one in asked], self.most_items_together
        return answer_in_batches(lengths, most_rows, inputs, lambda some: self._infer(some, target_s))

    def _run(self, feeds: FeedsLike, out: Feeds | None) -> dict[str, np.ndarray]:
        outputs = self(feeds).outputs
        return dict(outputs) | {name: copy_into(out, name, outputs[name]) for name in out or {}}

    def outputs_of(self, numbers: np.ndarray) -> dict[str, Any]:
        """Return the fields of a Reply that follow from the head's output."""
        is_head = self.outputs[0].name != "answer"
        return super().outputs_of(numbers) if is_head else {"outputs": {"answer": numbers[None]}}

    def _infer(
        self, asked: TimedFeeds, target_s: float | None, source: Encoder | None = None, is_alone: bool = False
    ) -> list[Reply[ClusterDetails]]:
        """Return the replies to inputs that run together."""
        feeds, starts_s = zip(*asked, strict=True)
        ran = self._runner.run(feeds, source, is_alone=is_alone)
        self._length = max(ran.lengths)
        return ran.replies(self.name, starts_s, target_s, self.outputs_of)
