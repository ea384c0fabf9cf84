"""Choose the next plan: solve and load it beside the run, as observed devices and links change.

Decides with `adapt` on the topology; solves with a given function; lets `Primary` have plans held ready.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import final

from pliant.cluster.control.messages import Note
from pliant.cluster.lead.choose_partition import PartitionChooser
from pliant.cluster.lead.lead_run import Pause
from pliant.cluster.lead.margin import PlanKind, kind_of
from pliant.cluster.lead.partition_cache import PartitionCache
from pliant.cluster.lead.plan_distribution import PlanNotReadyError, select_recent
from pliant.cluster.lead.plan_inputs import LayerEstimate, LoadRates, PlanChange, PlanInputs, Switch
from pliant.cluster.lead.plan_memory import fits, new_bytes
from pliant.cluster.lead.predict import Prediction, is_next, is_search_futile, layer_seconds, repredict
from pliant.cluster.lead.primary import Primary
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.cluster.member.worker import OnEvent
from pliant.cluster.net.activation_coding import Coding, scale_links
from pliant.cluster.watch import adapt
from pliant.cluster.watch.adapt import Topology, is_alike, is_worthwhile, reason_to_solve
from pliant.cluster.watch.topology_tracker import TopologyTracker
from pliant.errors import ClusterError
from pliant.ir.partition import Partition
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.activation_bytes import memory_bytes, whole_memory_bytes

_KNOWN = 64  # plans of earlier runs that are remembered, beside those that are held


@final
class AdaptivePlanner:
    """A `RunPlanner`; a context manager, whose thread solves and waits for members beside the run.

    `free_bytes` returns the memory available to a model on the primary itself. With `is_adaptive` off, a plan
    stays until a member fails; with `is_measuring` on, devices and links are measured before their first
    plan.
    """

    def __init__(
        self,
        primary: Primary,
        free_bytes: Callable[[], int],
        choose: PartitionChooser,
        *,
        coding: Coding = "fp32",
        is_adaptive: bool = True,
        is_measuring: bool = False,
        on_event: OnEvent = lambda text: None,
    ) -> None:
        self._primary, self._choose = primary, choose
        self._known = TopologyTracker(primary, free_bytes, is_measuring=is_measuring, on_event=on_event)
        self._coding, self._is_adaptive, self._on_event = coding, is_adaptive, on_event
        self._plans: dict[int, PlanInputs] = {}
        self.found = PartitionCache(primary.clock, is_free=is_measuring)
        self._held: list[ReadyPlan] = []
        self._pending: Future[PlanChange | None] | None = None
        self._better: PlanChange | None = None
        self._tight: ReadyPlan | None = None
        self._stuck: set[int] = set()
        self._felt: LayerEstimate | None = None
        self._rates = LoadRates()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pliant-steer")
        self._without: frozenset[str] = frozenset()
        self.switches: list[Switch] = []

    def __enter__(self) -> "AdaptivePlanner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop solving. Idempotent."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    # For RunLeader.

    def begin(
        self, source: EncoderSource, tokens: int, without: Collection[str], number: int = 0
    ) -> ReadyPlan:
        """Return the plan of the last run if it still fits, or a new one, down to the primary alone."""
        found = None if self._pending is None else self._take_pending()
        better, self._better, tight, self._tight = self._better, None, self._tight, None
        if tight is not None:
            better = found
        if number == 0:
            self.switches.clear()
            self._stuck.clear()
            tight = None  # of an earlier run
            known = {*list(self._plans)[-_KNOWN:], *(held.number for held in self._held)}
            self._plans = {n: plan for n, plan in self._plans.items() if n in known}
        self._forget(select_recent(self._held))
        self._without = frozenset(without) | self.newcomers(source)
        if number and better is not None and self._is_here(better.solved.partition):
            with suppress(PlanNotReadyError):
                held = better.held or self._hold(source, better.solved)
                self._switch(number, better.reason)
                return held
        if tight in self._held and self._is_here(tight.partition):
            self._stuck.add(tight.number)  # nothing fits better, so it continues
            return tight
        self._known.measure(source, tokens, self._without)
        kept = self._find_held(source, tokens)
        if kept is not None:
            return kept
        while True:
            solved = self.solve(source.spec, tokens, self._without)
            try:
                return self._hold(source, solved)
            except PlanNotReadyError as error:
                self._without |= error.reasons.keys()

    def next_plan(
        self, number: int, current: ReadyPlan, last: ReadyPlan, notes: Mapping[str, Note]
    ) -> ReadyPlan | Pause:
        """Return a plan that became ready, or the current one; starts a new solution if it may pay.

        The run pauses at the next boundary if memory does not suffice for the new plan beside the current
        one, and at once if it does not suffice for the current one.
        """
        if last.number in self._plans:
            self._known.update(self._plans[last.number].solved, notes)
        if not self._is_adaptive:
            return current
        n_layers = current.n_segments - 1 - number
        if self._pending is not None and self._pending.done() and n_layers > 0:  # the head is the primary's
            better = self._take_pending()
            if better is not None and self._is_here(better.solved.partition):
                if better.held is not None:
                    self._switch(number, better.reason)
                    return better.held
                self._better = better
                return Pause.NEXT
        is_due = self._pending is None and n_layers > 1 and number > 1
        reason = self._reason(current, is_felt=True) if is_due else None
        if reason is not None and (adapt.DRIFTED not in reason or self._may_pay(current, n_layers)):
            self._pending = self._thread.submit(self._find_better, current, n_layers)
            if self._is_tight(current):
                self._tight = current
                return Pause.NOW
        return current

    def wait_for_solution(self) -> None:
        """Return when the plan that is being solved or loaded is ready; `next_plan` does not wait for it."""
        if self._pending is not None:
            wait([self._pending])

    def predicted_s(self, held: ReadyPlan) -> float | None:
        """Return the seconds of one layer by the topology that the plan is based on."""
        return None if (known := self._plans.get(held.number)) is None else known.solved.layer_s

    # The inputs of plans.

    def solve(
        self, spec: EncoderSpec, tokens: int, without: Collection[str] = (), *, may_pause: bool = True
    ) -> Prediction:
        """Choose a partition by the current topology (`PartitionCache.get`), and predict it."""
        topology = self._known.snapshot(without)
        links = scale_links(topology.links, self._coding)
        search = partial(self._choose, spec, tokens, topology.capabilities, links, self._primary.name)
        return self.found.get(spec, tokens, topology, search, self._coding, may_pause=may_pause)

    def measure(self, source: EncoderSource, tokens: int, *, is_beside: bool = False) -> None:
        """Measure devices without a measurement of this model, and links to new devices (Hepti 4.1).
        If this is repeated between runs (`is_beside`), runs do not include new devices until then."""
        (self._known.measure_beside if is_beside else self._known.measure)(source, tokens)

    def newcomers(self, source: EncoderSource) -> frozenset[str]:
        """Return the workers that runs exclude until they are measured (`TopologyTracker.newcomers`)."""
        return self._known.newcomers(source)

    def reconsider(self) -> bool:
        """Use devices again that were excluded as slow, and search anew for plans that are held; return
        whether there are any such devices.
        """
        self.found.clear()
        for number, plan in list(self._plans.items()):
            self._plans[number] = replace(plan, solved=replace(plan.solved, is_due=True))
        return self._known.reconsider()

    def doubt(self, kind: PlanKind) -> None:
        """Search anew for plans of a kind that must save more than when they were chosen.

        A plan of another kind is then used instead, even if it is predicted to be slower.
        """
        self.found.drop(kind)
        for number, plan in list(self._plans.items()):
            if kind_of(plan.solved.partition) == kind:
                self._plans[number] = replace(plan, is_doubted=True)

    def forget(self, source: EncoderSource) -> None:
        """Free all plans of a model on all members. No run may be in progress."""
        if self._pending is not None:
            self._take_pending()
        self._held = [held for held in self._held if held.source.whole.identity != source.whole.identity]
        self._primary.plans.forget(self._held)

    @property
    def topology(self) -> Topology:
        """The devices that a plan may use now, and the links."""
        return self._known.snapshot()

    @property
    def held(self) -> tuple[ReadyPlan, ...]:
        """The plans that are held ready; thread-safe."""
        return tuple(self._held)

    def load_s(self, source: EncoderSource, partition: Partition) -> float:
        """Return the seconds to load a partition's weights that no device holds; thread-safe."""
        return self._rates.seconds(new_bytes(source, partition, self.held))

    def inputs_of(self, held: ReadyPlan) -> PlanInputs:
        """Return the inputs of a plan that was begun here."""
        return self._plans[held.number]

    def _reason(self, current: ReadyPlan, *, is_felt: bool = False) -> str | None:
        """Why to solve again; with `is_felt` any drift counts, else its predicted effect on a layer."""
        if (known := self._plans.get(current.number)) is None:
            return None
        return reason_to_solve(
            known.solved.topology,
            self._known.snapshot(self._without),
            current.partition.participants,
            known.need,
            known.whole_bytes,
            None if is_felt else lambda topology: self._layer_s(known.solved, topology),
        )

    def _layer_s(self, solved: Prediction, topology: Topology) -> float:
        """Return a layer's time by another topology; for a nearly equal topology, the cached time."""
        if topology is solved.topology:
            return solved.layer_s
        felt = self._felt
        if felt is None or felt.solved is not solved or not is_alike(felt.topology, topology):
            self._felt = felt = LayerEstimate(solved, topology, layer_seconds(solved, topology))
        return felt.layer_s

    def _recovered(self, held: ReadyPlan) -> tuple[str, ...]:
        before, now = self._plans[held.number].solved.topology, self._known.snapshot(self._without)
        return adapt.find_recovered(before, now, held.partition.participants)

    def _may_pay(self, current: ReadyPlan, n_layers: int) -> bool:
        """Return whether a change may save more than a search takes; otherwise the next run is replanned."""
        solved, topology = self._plans[current.number].solved, self._known.snapshot(self._without)
        if not {*current.partition.participants} <= topology.capabilities.keys():
            return True  # one has just left, which the run notices
        now_s = self._layer_s(solved, topology)
        return n_layers * adapt.most_saved_s(solved.layer_s, now_s) > self.found.search_s

    def _is_here(self, partition: Partition) -> bool:
        return set(partition.participants) <= self._known.here(self._without)

    def _is_tight(self, current: ReadyPlan) -> bool:
        """Return whether a member has too little memory for its part, and no other plan was searched yet."""
        if (plan := self._plans.get(current.number)) is None or current.number in self._stuck:
            return False
        need = {name: plan.need[name] for name in current.partition.participants}
        return bool(adapt.find_overloaded(need, self._known.snapshot(self._without)))

    def _find_held(self, source: EncoderSource, tokens: int) -> ReadyPlan | None:
        """Return a plan held ready that is still valid, if there is one."""
        here = self._known.here(self._without)
        for held in reversed(self._held):
            plan = self._plans[held.number]
            is_same = held.source.identity == source.identity and held.partition.tokens == tokens
            is_of_all = plan.solved.topology.capabilities.keys() == here
            if is_same and is_of_all and self._primary.plans.is_held(held):
                self._held = [*(one for one in self._held if one is not held), held]
                is_due = (plan.solved.is_due or plan.is_doubted) and not self.found.is_paused
                if not self._is_adaptive or not (is_due or self._reason(held) or self._recovered(held)):
                    return held
                anew = self.solve(source.spec, tokens, self._without)
                if not here <= anew.topology.capabilities.keys():  # a member left at this moment
                    return None
                if plan.is_doubted and kind_of(anew.partition) != kind_of(held.partition):
                    return None
                now = repredict(plan.solved, anew.topology)
                tight = adapt.find_overloaded(plan.need, anew.topology)
                if not tight and not is_next(now, anew):
                    solved = replace(now, is_due=anew.is_due)
                    self._plans[held.number] = replace(plan, solved=solved, is_doubted=False)
                    return held
                return None
        return None

    def _hold(self, source: EncoderSource, solved: Prediction) -> ReadyPlan:
        """Have a plan held ready while nothing runs: in place if memory suffices for no other beside it.

        A plan of the same partition that is still held is used again; the earlier ones are freed if memory
        does not suffice for them. Raises PlanNotReadyError naming members that cannot.
        """
        for held in self._held:
            is_same = held.partition == solved.partition and held.source.identity == source.identity
            if is_same and self._primary.plans.is_held(held):
                if fits(source, solved, self._held):
                    self._held = [*(one for one in self._held if one is not held), held]
                else:
                    self._forget([held])
                self._plans[held.number] = replace(self._plans[held.number], solved=solved, is_doubted=False)
                return held
        beside = self._held
        while beside and not fits(source, solved, beside):
            beside = beside[(len(beside) + 1) // 2 :]
        if beside:
            self._forget(beside)
        return self._prepare(source, solved, is_in_place=bool(self._held) and not beside)

    def _prepare(self, source: EncoderSource, solved: Prediction, *, is_in_place: bool = False) -> ReadyPlan:
        spec, partition = source.spec, solved.partition
        if is_in_place:
            self._held.clear()  # members free them when asked, even if the new plan then fails
        plans = self._primary.plans
        try:
            held, answers = plans.prepare(source, partition, self._coding, is_in_place=is_in_place)
        except ClusterError:
            plans.forget(self._held)  # other members may hold it
            raise
        loads = {name: (ready.loaded_bytes, ready.load_s) for name, ready in answers.items()}
        loads[self._primary.name] = held.runner.loaded.n_bytes, held.runner.loaded.seconds
        self._rates.observe(loads)
        need, whole_bytes = memory_bytes(spec, partition), whole_memory_bytes(spec, partition.tokens)
        load_s = max(seconds for _, seconds in loads.values())
        self._plans[held.number] = PlanInputs(solved, need, whole_bytes, load_s=load_s)
        self._held.append(held)
        return held

    def _forget(self, keep: Sequence[ReadyPlan]) -> None:
        """Have all members free the plans that are not to be kept."""
        if len(keep) < len(self._held):
            self._held = list(keep)
            self._primary.plans.forget(self._held)

    def _switch(self, number: int, reason: str) -> None:
        self.switches.append(Switch(number, reason))
        self._on_event(f"new plan from segment {number}: {reason}")

    def _find_better(self, current: ReadyPlan, n_layers: int) -> PlanChange | None:
        """On the steering thread: return a better plan, held ready if memory allows; None if none pays."""
        reason = self._reason(current)
        if reason is None or self._is_in_vain(current, n_layers):
            return None
        source, plan = current.source, self._plans[current.number]
        spec, tokens = source.spec, current.partition.tokens
        solved = self.solve(spec, tokens, self._without, may_pause=False)
        if solved.partition == current.partition:
            self._plans[current.number] = replace(plan, solved=solved)
            return None
        participants = current.partition.participants
        if not set(participants) <= solved.topology.capabilities.keys():
            return None  # a member left meanwhile: the run detects that itself
        now = repredict(plan.solved, solved.topology)
        x_s = solved.topology.links.link(self._primary.name, self._primary.name).seconds(
            4 * tokens * spec.hidden * len(set(solved.partition.participants) - set(participants))
        )
        is_beside = fits(source, solved, [current])
        load_s = self.load_s(source, solved.partition)
        times = (load_s, x_s) if is_beside else (0.0, x_s + load_s)
        must = adapt.find_overloaded(plan.need, solved.topology)
        if not must and not is_worthwhile(now.layer_s, solved.layer_s, n_layers, *times):
            self._plans[current.number] = replace(plan, solved=replace(now, is_due=is_next(now, solved)))
            return None
        if not is_beside:
            return PlanChange(solved, reason, None)
        if not fits(source, solved, self._held):
            self._forget([current])
        try:
            return PlanChange(solved, reason, self._prepare(source, solved))
        except PlanNotReadyError:
            return None

    def _is_in_vain(self, current: ReadyPlan, n_layers: int) -> bool:
        """Return whether it is known, without a search, that no other plan pays."""
        plan, topology = self._plans[current.number], self._known.snapshot(self._without)
        if not self._is_here(current.partition) or adapt.find_overloaded(plan.need, topology):
            return False
        now = repredict(plan.solved, topology)
        found = is_search_futile(current.source.spec, now, n_layers, self._coding)
        if found:
            before, whole_bytes = plan.solved.topology, plan.whole_bytes
            is_back = current.partition.bits and adapt.find_memory_gains(before, topology, whole_bytes)
            is_due = now.is_due or bool(is_back)  # weights may become more precise, though not quicker
            self._plans[current.number] = replace(plan, solved=replace(now, is_due=is_due))
        return found

    def _take_pending(self) -> PlanChange | None:
        pending, self._pending = self._pending, None
        assert pending is not None
        try:
            return pending.result()
        except Exception as error:  # noqa: BLE001 - the run itself continues by its current plan
            self._on_event(f"no new plan: {error or type(error).__name__}")
            return None
