"""What is known of a cluster: its devices and links as measured, and as runs have shown them since.

Knows no plan's reason; asks devices and links to be measured, by `survey`, and keeps what they say.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import final

from pliant.cluster.adapt import Picture, believed
from pliant.cluster.measure_links import links_of
from pliant.cluster.messages import Note
from pliant.cluster.monitor import Member
from pliant.cluster.predict import Solved, link_ratios
from pliant.cluster.primary import Primary
from pliant.cluster.survey import survey_devices, survey_links
from pliant.cluster.worker import OnEvent
from pliant.ir.cluster import Capability, Drift, Interface, Links, Seen, refreshed, refreshed_links
from pliant.ir.program import Compute
from pliant.models.encoder_source import EncoderSource

UNKNOWN = Capability(cycles_per_flop=0.1, frequency_Hz=2e9, free_bytes=1 << 40, call_s=50e-6)
"""What a device counts as until it was measured: about 20 GFLOP/s."""
UNKNOWN_LINK = Interface(100e6, 100e6)
UNKNOWN_RTT_S = 0.5e-3


@final
class Known:
    """Devices that hold the model of the last `measure`, and links between them.

    `free_bytes` says what a model may take on the primary itself.
    """

    def __init__(
        self, primary: Primary, free_bytes: Callable[[], int], *, is_measuring: bool, on_event: OnEvent
    ) -> None:
        self._primary, self._free_bytes = primary, free_bytes
        self._is_measuring, self._on_event = is_measuring, on_event
        self._measured: dict[str, dict[str, Capability]] = {}
        self._model = ""
        self._lacks: set[tuple[str, str]] = set()
        self._drifts: dict[str, Capability] = {}
        self._links: Links | None = None
        self._unbelieved: dict[tuple[str, str], float] = {}

    def here(self, without: Collection[str] = ()) -> set[str]:
        """The primary and all workers that a plan may count on now."""
        return {self._primary.name} | {m.name for m in self._usable()} - set(without)

    def picture(self, without: Collection[str] = ()) -> Picture:
        """Devices that a plan may count on now, and links, as measured and as seen since."""
        free = {member.name: member.free_bytes for member in self._usable() if member.name not in without}
        free = {self._primary.name: self._free_bytes()} | free
        devices = {name: replace(self._device(name), free_bytes=n) for name, n in free.items()}
        return Picture(devices, self._links_of(devices))

    def measure(self, source: EncoderSource, tokens: int, without: Collection[str] = ()) -> None:
        """From now on a plan is of this model.

        Measure whoever was not measured with this model yet, and links to whoever is new (Hepti 4.1),
        where that is wanted.
        """
        self._unbelieved.clear()
        self._model = source.identity
        self._say_who_lacks_it()
        if not self._is_measuring:
            return
        measured = self._measured.setdefault(source.identity, {})
        here = self.here(without)
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

    def see(self, solved: Solved, notes: Mapping[str, Note]) -> None:
        """Move the picture towards what a segment showed; `solved` is what its plan was made of."""
        flops = solved.cost.flops
        here = self.here()
        notes = {name: note for name, note in notes.items() if name in here}
        for name, note in notes.items():
            device = self._device(name)
            seen = []
            for kind, seconds in note.compute_s.items():
                work = flops(Compute(kind, device=name))
                expected_s = device.seconds(kind, work)
                if seconds > 0 and expected_s > 0:
                    ratio = self._believed((name, kind), seconds / expected_s)
                    seen.append(Seen(kind, work, expected_s * ratio))
            self._drifts[name] = _drifted(device, seen)
        offsets_s = {m.name: m.offset_s for m in self._primary.monitor.members}
        links = self._links_of(here)
        ratios = link_ratios(solved, links, notes, offsets_s)
        if ratios:
            ratios = {ends: self._believed(ends, ratio) for ends, ratio in ratios.items()}
            self._links = refreshed_links(links, ratios, weight=1.0)

    def _device(self, name: str) -> Capability:
        """As measured with this model and seen since; its memory is as of then."""
        device = self._measured.get(self._model, {}).get(name, UNKNOWN)
        seen = self._drifts.get(name)
        return device if seen is None else replace(device, drifts=seen.drifts)

    def _links_of(self, devices: Collection[str]) -> Links:
        known = self._links or Links({}, UNKNOWN_RTT_S)
        interfaces = {name: known.interfaces.get(name, UNKNOWN_LINK) for name in devices}
        pairs = {ends: link for ends, link in known.pairs.items() if set(ends) <= set(devices)}
        return Links(interfaces, known.rtt_s, pairs)

    def _believed(self, what: tuple[str, str], ratio: float) -> float:
        """Of a stage of a device or a link; remembers what of the ratio is left to be seen again."""
        found = believed(ratio, self._unbelieved.get(what, 1.0))
        self._unbelieved[what] = ratio / found
        return found

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


def _drifted(device: Capability, seen: Sequence[Seen]) -> Capability:
    """`refreshed`; kinds of stages that were not seen, of another mode perhaps, drift as all that were."""
    after = refreshed(device, seen, weight=1.0)
    before_s = sum(device.seconds(s.kind, s.flops) for s in seen)
    if before_s <= 0:
        return after
    ratio = sum(after.seconds(s.kind, s.flops) for s in seen) / before_s
    known = {curve.kind for curve in device.curves} | {drift.kind for drift in device.drifts}
    drifts = {kind: device.drift(kind) * ratio for kind in sorted(known)}
    drifts |= {s.kind: after.drift(s.kind) for s in seen}
    return replace(after, drifts=tuple(Drift(kind, factor) for kind, factor in drifts.items()))
