"""Which plan runs next: keeps the picture of devices and links up to date, solves and loads beside the run.

Decides by `adapt`; solves by a function it is given; asks `Primary` to have plans held ready.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import final

from pliant.cluster.adapt import LEAST_GAIN, Picture, pays, reason_to_solve, too_large
from pliant.cluster.choose import Choose
from pliant.cluster.coding import Coding
from pliant.cluster.held import Held
from pliant.cluster.measure_links import links_of
from pliant.cluster.messages import Note
from pliant.cluster.monitor import Member
from pliant.cluster.predict import Solved, layer_seconds, link_ratios, predict
from pliant.cluster.primary import NotReady, Primary
from pliant.cluster.survey import survey_devices, survey_links
from pliant.cluster.worker import OnEvent
from pliant.errors import PliantError
from pliant.ir.cluster import Capability, Interface, Links, Seen, refreshed, refreshed_links
from pliant.ir.program import Compute
from pliant.models.encoder_source import EncoderSource
from pliant.models.encoder_spec import EncoderSpec
from pliant.plan.parts import weight_bytes, work_flops

UNKNOWN = Capability(cycles_per_flop=0.1, frequency_Hz=2e9, free_bytes=1 << 40, call_s=50e-6)
"""What a device counts as until it was measured: about 20 GFLOP/s."""
UNKNOWN_LINK = Interface(100e6, 100e6)
UNKNOWN_RTT_S = 0.5e-3
_LOAD_BPS = 200e6
"""Loading and packing weights, until a worker has shown how fast it does that."""
_KEPT = 4
"""Plans that members hold ready at a time, of other lengths or models too."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of plan inside a run: from which segment on, and why."""

    segment: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Ready:
    held: Held
    solved: Solved
    reason: str


@final
class Steering:
    """A `Steer`; a context manager, whose thread solves and waits for members beside the run.

    `free_bytes` says what a model may take on the primary itself. With `is_adaptive` off, a plan stays until
    a member fails; with `is_measuring` on, devices and links are measured before their first plan.
    """

    def __init__(
        self,
        primary: Primary,
        free_bytes: Callable[[], int],
        choose: Choose,
        *,
        coding: Coding = "fp32",
        is_adaptive: bool = True,
        is_measuring: bool = False,
        on_event: OnEvent = lambda text: None,
    ) -> None:
        self._primary, self._free_bytes, self._choose = primary, free_bytes, choose
        self._is_measuring = is_measuring
        self._measured: dict[str, dict[str, Capability]] = {}
        self._model = ""
        self._lacks: set[tuple[str, str]] = set()
        self._coding, self._is_adaptive, self._on_event = coding, is_adaptive, on_event
        self._drifts: dict[str, Capability] = {}
        self._links: Links | None = None
        self._plans: dict[int, tuple[Held, Solved]] = {}
        self._pending: Future[_Ready | None] | None = None
        self._load_Bps: dict[str, float] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pliant-steer")
        self._without: frozenset[str] = frozenset()
        self.switches: list[Switch] = []

    def __enter__(self) -> "Steering":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop solving; safe to call twice."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    # What Lead asks.

    def begin(self, source: EncoderSource, tokens: int, without: Collection[str], number: int = 0) -> Held:
        """The plan of the last run if it still fits, or a new one, down to the primary alone."""
        self._await_pending()
        if number == 0:
            self.switches.clear()
        self._forget()
        self._without = frozenset(without)
        self.measure(source, tokens)
        kept = self._kept(source, tokens)
        if kept is not None:
            return kept
        while True:
            solved = self.solve(source.spec, tokens, self._without)
            try:
                return self._hold(source, solved).held
            except NotReady as error:
                self._without |= error.reasons.keys()

    def following(self, number: int, current: Held, notes: Mapping[str, Note]) -> Held:
        """The plan that became ready since, or the current one; a new solution is begun where it may pay."""
        self._see(current, notes)
        if not self._is_adaptive:
            return current
        if self._pending is not None and self._pending.done():
            ready = self._take_pending()
            if ready is not None and set(ready.held.partition.participants) <= self._here():
                self.switches.append(Switch(number, ready.reason))
                self._on_event(f"new plan from segment {number}: {ready.reason}")
                return ready.held
        n_layers = current.n_segments - 1 - number
        if self._pending is None and n_layers > 1 and number > 1:
            reason = self._reason(current)
            if reason is not None:
                self._pending = self._thread.submit(self._look, current, reason, n_layers)
        return current

    def predicted_s(self, held: Held) -> float | None:
        """Seconds of one layer by the picture that the plan was made of."""
        known = self._plans.get(held.number)
        return None if known is None else known[1].layer_s

    # What plans are made of.

    def picture(self, without: Collection[str] = ()) -> Picture:
        """Devices that a plan may count on now, and links, as measured and as seen since."""
        measured = self._measured.get(self._model, {})
        own = measured.get(self._primary.name, UNKNOWN)
        devices = {self._primary.name: replace(own, free_bytes=self._free_bytes())}
        for member in self._usable():
            if member.name not in without:
                known = measured.get(member.name, UNKNOWN)
                devices[member.name] = replace(known, free_bytes=member.free_bytes)
        devices = {name: self._with_drift(name, device) for name, device in devices.items()}
        return Picture(devices, self._links_of(devices))

    def solve(self, spec: EncoderSpec, tokens: int, without: Collection[str] = ()) -> Solved:
        """Choose a partition by the picture as it is now, and predict it."""
        picture = self.picture(without)
        name = self._primary.name
        partition = self._choose(spec, tokens, picture.capabilities, picture.links, name)
        return predict(spec, partition, picture, self._coding)

    def solved(self, held: Held) -> Solved:
        """What a plan that was begun here was made of."""
        return self._plans[held.number][1]

    def measure(self, source: EncoderSource, tokens: int) -> None:
        """Measure whoever was not measured with this model yet, and links to whoever is new (Hepti 4.1)."""
        self._model = source.identity
        self._say_who_lacks_it()
        if not self._is_measuring:
            return
        measured = self._measured.setdefault(source.identity, {})
        here = self._here()
        new = sorted(here - measured.keys())
        if new:
            self._on_event(f"measuring {', '.join(new)}")
            found = survey_devices(self._primary, source, tokens, new)
            measured.update(found)
            for name in found:
                self._drifts.pop(name, None)
        known = set() if self._links is None else self._links.interfaces.keys()
        if len(here) > 1 and not here <= known:
            links = survey_links(self._primary, here)
            if links:
                self._links = links_of(links)

    def _with_drift(self, name: str, device: Capability) -> Capability:
        seen = self._drifts.get(name)
        return device if seen is None else replace(device, drifts=seen.drifts)

    def _links_of(self, devices: Collection[str]) -> Links:
        known = self._links or Links({}, UNKNOWN_RTT_S)
        interfaces = {name: known.interfaces.get(name, UNKNOWN_LINK) for name in devices}
        pairs = {ends: link for ends, link in known.pairs.items() if set(ends) <= set(devices)}
        return Links(interfaces, known.rtt_s, pairs)

    def _see(self, current: Held, notes: Mapping[str, Note]) -> None:
        """Move the picture towards what the last segment showed."""
        known = self._plans.get(current.number)
        if known is None:
            return
        flops = work_flops(current.source.spec, current.partition)
        now = self.picture().capabilities
        for name, note in notes.items():
            device = now.get(name)
            if device is None:
                continue
            seen = [
                Seen(kind, flops(Compute(kind, device=name)), seconds)
                for kind, seconds in note.compute_s.items()
                if seconds > 0
            ]
            self._drifts[name] = refreshed(device, [s for s in seen if s.flops > 0])
        offsets_s = {m.name: m.offset_s for m in self._primary.monitor.members}
        links = self._links_of(now)
        ratios = link_ratios(known[1], links, {n: note for n, note in notes.items() if n in now}, offsets_s)
        if ratios:
            self._links = refreshed_links(links, ratios)

    def _reason(self, current: Held) -> str | None:
        known = self._plans.get(current.number)
        if known is None:
            return None
        need = weight_bytes(current.source.spec, current.partition)
        now, spec, partition = self.picture(self._without), current.source.spec, current.partition
        return reason_to_solve(
            known[1].picture,
            now,
            partition.participants,
            need,
            lambda picture: layer_seconds(spec, partition, picture, self._coding),
        )

    # Plans.

    def _kept(self, source: EncoderSource, tokens: int) -> Held | None:
        """A plan held ready that nothing speaks against."""
        here = self._here()
        for held, solved in reversed(self._plans.values()):
            is_same = held.source.identity == source.identity and held.partition.tokens == tokens
            if is_same and solved.picture.capabilities.keys() == here and self._primary.is_held(held):
                if not self._is_adaptive or self._reason(held) is None:
                    return held
                anew = self.solve(source.spec, tokens, self._without)
                if not here <= anew.picture.capabilities.keys():  # somebody left this moment
                    return None
                now = predict(source.spec, held.partition, anew.picture, self._coding)
                tight = too_large(weight_bytes(source.spec, held.partition), anew.picture)
                if not tight and now.layer_s * (1 - LEAST_GAIN) <= anew.layer_s:
                    self._plans[held.number] = held, now
                    return held
                return None
        return None

    def _hold(self, source: EncoderSource, solved: Solved, reason: str = "") -> _Ready:
        held, answers = self._primary.prepare(source, solved.partition, self._coding)
        for name, ready in answers.items():
            if ready.load_s > 0 and ready.weight_bytes > 0:
                self._load_Bps[name] = ready.weight_bytes / ready.load_s
        self._plans[held.number] = held, solved
        return _Ready(held, solved, reason)

    def _forget(self) -> None:
        if len(self._plans) > _KEPT:
            self._plans = dict(list(self._plans.items())[-_KEPT:])
            self._primary.forget([held for held, _ in self._plans.values()])

    def _look(self, current: Held, reason: str, n_layers: int) -> _Ready | None:
        """On the steering thread: a better plan, held ready; None where none pays."""
        spec, tokens = current.source.spec, current.partition.tokens
        solved = self.solve(spec, tokens, self._without)
        if solved.partition == current.partition:
            self._plans[current.number] = current, solved
            return None
        participants = current.partition.participants
        if not set(participants) <= solved.picture.capabilities.keys():
            return None  # somebody left meanwhile: the run notices by itself
        need = weight_bytes(spec, current.partition)
        must = too_large({name: need[name] for name in participants}, solved.picture)
        now = predict(spec, current.partition, solved.picture, self._coding)
        x_s = solved.picture.links.link(self._primary.name, self._primary.name).seconds(
            4 * tokens * spec.hidden * len(set(solved.partition.participants) - set(participants))
        )
        if not must and not pays(now.layer_s, solved.layer_s, n_layers, self._load_s(spec, solved), x_s):
            self._plans[current.number] = current, now
            return None
        try:
            return self._hold(current.source, solved, reason)
        except NotReady:
            return None

    def _load_s(self, spec: EncoderSpec, solved: Solved) -> float:
        need = weight_bytes(spec, solved.partition)
        return max(n / self._load_Bps.get(name, _LOAD_BPS) for name, n in need.items())

    def _here(self) -> set[str]:
        usable = {m.name for m in self._usable()}
        return {self._primary.name} | (usable - self._without)

    def _usable(self) -> tuple[Member, ...]:
        """Workers that can be counted on and hold the model."""
        usable = self._primary.monitor.usable()
        return tuple(member for member in usable if self._model in member.hello.models)

    def _say_who_lacks_it(self) -> None:
        for member in self._primary.monitor.usable():
            lack = member.name, self._model
            if self._model not in member.hello.models and lack not in self._lacks:
                self._lacks.add(lack)
                self._on_event(
                    f"{member.name} is left out: it does not hold this very model ({self._model[:12]}); "
                    "start its worker with --model and a true copy."
                )

    def _await_pending(self) -> None:
        if self._pending is not None:
            self._take_pending()

    def _take_pending(self) -> _Ready | None:
        pending, self._pending = self._pending, None
        assert pending is not None
        try:
            return pending.result()
        except PliantError as error:
            self._on_event(f"no new plan: {error}")
            return None
