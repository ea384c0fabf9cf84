"""The devices and links of a cluster, as measured and as later runs have shown them.

`survey` measures the devices and links; this module keeps the results.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import final

from pliant.cluster.control.messages import Note
from pliant.cluster.lead.measure_links import links_of
from pliant.cluster.lead.predict import Prediction
from pliant.cluster.lead.primary import Primary
from pliant.cluster.lead.survey import survey_devices, survey_links
from pliant.cluster.member.worker import OnEvent
from pliant.cluster.watch.adapt import THRESHOLD, Topology
from pliant.cluster.watch.member_registry import Member
from pliant.cluster.watch.retry_backoff import RetryBackoff
from pliant.cluster.watch.update_topology import UnconfirmedRatios, restore_measured_links, update_topology
from pliant.ir.capability import Capability, Interface, Links
from pliant.models.encoder.encoder_source import EncoderSource

UNKNOWN = Capability(cycles_per_flop=0.1, frequency_Hz=2e9, free_bytes=1 << 40, call_s=50e-6)
"""Assumed capability of a device before it is measured: about 20 GFLOP/s."""
UNKNOWN_LINK = Interface(100e6, 100e6)
UNKNOWN_LATENCY_S = 0.5e-3
_MOST_COMMON = 1.25
"""Largest drift that a worker may share with those in use; a larger one is of the devices themselves."""
_PATIENCE_S = 10.0
"""How long runs exclude a worker that must be measured between runs."""


@final
class TopologyTracker:
    """Devices that hold the model of the last `measure`, and the links between them.

    `free_bytes` returns the memory available to a model on the primary itself.
    """

    def __init__(
        self, primary: Primary, free_bytes: Callable[[], int], *, is_measuring: bool, on_event: OnEvent
    ) -> None:
        self._primary, self._free_bytes = primary, free_bytes
        self._is_measuring, self._on_event = is_measuring, on_event
        self._is_followed = False
        self._excluded_s: dict[str, dict[str, float]] = {}
        self._measured: dict[str, dict[str, Capability]] = {}
        self._model, self._is_submodel = "", False
        self._processes: dict[str, tuple[str, int]] = {}
        self._lacks: set[tuple[str, str]] = set()
        self._drifts: dict[str, Capability] = {}
        self._in_use: frozenset[str] = frozenset()
        self._links: Links | None = None
        self._surveyed: set[str] = set()
        self._measured_links: Links | None = None
        self._worked, self._sent = RetryBackoff(), RetryBackoff()
        self._unconfirmed: UnconfirmedRatios = {}
        self._own_free_bytes: int | None = None

    def here(self, without: Collection[str] = ()) -> set[str]:
        """Return the primary and all workers that a plan may use now."""
        return {self._primary.name} | {m.name for m in self._usable()} - set(without)

    def snapshot(self, without: Collection[str] = ()) -> Topology:
        """Return the devices that a plan may use now, and links, as measured and as observed since."""
        free = {member.name: member.free_bytes for member in self._usable() if member.name not in without}
        if self._own_free_bytes is None:
            self._own_free_bytes = self._free_bytes()
        free = {self._primary.name: self._own_free_bytes} | free
        devices = {name: replace(self._device(name), free_bytes=n) for name, n in free.items()}
        return Topology(devices, self._links_of(devices))

    def newcomers(self, source: EncoderSource) -> frozenset[str]:
        """Select the model, and return the workers that runs exclude until they are measured between runs.

        If a worker is not measured for _PATIENCE_S, the next run measures it.
        """
        self._model, self._is_submodel = source.whole.identity, source.whole is not source
        self._forget_restarted()
        measured = self._measured.get(self._model, {})
        if not self._is_followed or self._primary.name not in measured:
            return frozenset()
        since_s, now_s = self._excluded_s.get(self._model, {}), self._primary.clock()
        new = self.here() - {self._primary.name} - (measured.keys() & self._surveyed)
        new -= {name for name in new if now_s - since_s.get(name, now_s) >= _PATIENCE_S}
        self._excluded_s[self._model] = {name: since_s.get(name, now_s) for name in new}
        return frozenset(new)

    def measure_beside(self, source: EncoderSource, tokens: int) -> None:
        """As `measure`, repeatedly and between runs."""
        self._is_followed = True
        self.measure(source, tokens)

    def measure(self, source: EncoderSource, tokens: int, without: Collection[str] = ()) -> None:
        """Select the model of later plans, and measure what is missing.

        If measuring is enabled, measures devices without a measurement of this model, and links of new
        devices (Hepti 4.1). The measurement of a device that took no part in runs for its back-off
        replaces later observations, except for a drift that all workers in use have as well.
        """
        self._unconfirmed = {}
        self._own_free_bytes = None
        self._model, self._is_submodel = source.whole.identity, source.whole is not source
        self._report_missing_model()
        self._forget_restarted()
        self._reset_due()
        if not self._is_measuring:
            return
        measured = self._measured.setdefault(self._model, {})
        here = self.here(without)
        new = sorted(here - measured.keys())
        if new:
            self._on_event(f"measuring {', '.join(new)}")
            found = survey_devices(self._primary, source.whole, tokens, new)
            measured.update(found)
            for name in found:
                self._drifts.pop(name, None)
            here -= set(new) - found.keys()  # one that serves another primary answers no probe of links
        if len(here) > 1 and not here <= self._surveyed:
            links = survey_links(self._primary, here)
            if links:
                self._links = self._measured_links = links_of(links)
                self._surveyed = set(self._links.interfaces)

    def update(self, solved: Prediction, notes: Mapping[str, Note]) -> None:
        """Update the topology from a segment's notes; `solved` holds what its plan was based on."""
        here = self.here()
        notes = {name: note for name, note in notes.items() if name in here}
        if self._primary.name in notes:
            self._own_free_bytes = notes[self._primary.name].free_bytes  # read a moment ago
        now_s = self._primary.clock()
        worked = frozenset(name for name, note in notes.items() if note.compute_s)
        self._in_use = worked - {self._primary.name}
        self._worked.record_reports(worked, now_s)
        self._sent.record_reports(
            {end for name, note in notes.items() for src in note.arrived for end in (name, src)}, now_s
        )
        devices = {name: self._device(name) for name in notes}
        before = Topology(devices, self._links_of(here))
        offsets_s = {m.name: m.offset_s for m in self._primary.monitor.members}
        after, self._unconfirmed = update_topology(before, self._unconfirmed, solved, notes, offsets_s)
        self._drifts |= after.capabilities
        if after.links is not before.links:
            self._links = self._with_links_of_absent(after.links, here)

    def reconsider(self) -> bool:
        """Reset slowed workers to their measurements before their back-off ends; return if there are any.

        Use it for a run that no request waits for.
        """
        slowed = [name for name in self._drifts.keys() - {self._primary.name} if self._is_slowed(name)]
        for name in slowed:
            del self._drifts[name]
        return bool(slowed)

    def _forget_restarted(self) -> None:
        """Forget what is known of workers that are new processes by their Hello: their threads may differ."""
        for member in self._usable():
            process = member.hello.data_address, member.hello.n_threads
            if self._processes.setdefault(member.name, process) != process:
                self._processes[member.name] = process
                for known in (*self._measured.values(), self._drifts):
                    known.pop(member.name, None)
                self._surveyed.discard(member.name)

    def _is_slowed(self, name: str) -> bool:
        return self._most_drift(name) > 1.0 + THRESHOLD

    def _most_drift(self, name: str) -> float:
        drifts = self._drifts[name].drifts if name in self._drifts else ()
        return max((drift.factor for drift in drifts), default=1.0)

    def _reset_due(self) -> None:
        here = self.here()
        common = min((self._most_drift(name) for name in self._in_use), default=1.0)
        for name in self._worked.take_due(here) & self._drifts.keys():
            self._drifts[name] = _recover(self._drifts[name], min(common, _MOST_COMMON))
        silent = self._sent.take_due(here)
        if self._links is not None and self._measured_links is not None:
            self._links = restore_measured_links(self._links, self._measured_links, silent)

    def _device(self, name: str) -> Capability:
        """A device as measured with this model, with later drifts; its memory is that of the measurement."""
        device = self._measured.get(self._model, {}).get(name, UNKNOWN)
        seen = self._drifts.get(name)
        return device if seen is None else replace(device, drifts=seen.drifts)

    def _links_of(self, devices: Collection[str]) -> Links:
        known = self._links or Links({}, UNKNOWN_LATENCY_S)
        interfaces = {name: known.interfaces.get(name, UNKNOWN_LINK) for name in devices}
        pairs = {ends: link for ends, link in known.pairs.items() if set(ends) <= set(devices)}
        return Links(interfaces, known.latency_s, pairs)

    def _with_links_of_absent(self, links: Links, here: Collection[str]) -> Links:
        """Add the links of members that are not `here`: their survey counts when they return."""
        known = self._links or Links({}, UNKNOWN_LATENCY_S)
        away = {ends: link for ends, link in known.pairs.items() if not set(ends) <= set(here)}
        return Links({**known.interfaces, **links.interfaces}, links.latency_s, {**away, **links.pairs})

    def _usable(self) -> tuple[Member, ...]:
        """Return usable workers that hold the model; for a submodel, only those that support submodels."""
        usable = self._primary.monitor.usable()
        return tuple(
            member
            for member in usable
            if self._model in member.hello.models and member.hello.holds_submodels >= self._is_submodel
        )

    def _report_missing_model(self) -> None:
        for member in self._primary.monitor.usable():
            lack = member.name, self._model
            if self._model not in member.hello.models and lack not in self._lacks:
                self._lacks.add(lack)
                self._on_event(
                    f"{member.name} is excluded: it does not hold this exact model ({self._model[:12]}); "
                    "start its worker with --model and a true copy."
                )


def _recover(device: Capability, common: float) -> Capability:
    """Return a device without drift, except for one that workers in use have too: it is the measurements'."""
    drifts = tuple(replace(one, factor=min(max(one.factor, 1.0), common)) for one in device.drifts)
    return replace(device, drifts=drifts if common > 1.0 else ())
