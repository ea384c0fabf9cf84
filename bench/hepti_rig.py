"""A primary in this process and workers in their own, on emulated devices; runs given plans.

It uses pliant's own parts: `pliant worker`, the primary, its lead. Only the plan does not come from the
planner, because a bench compares plans.
"""

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import final

import msgspec
import numpy as np

from hepti_beds import Device, DeviceSpec, Network, inside, rate
from pliant import __version__
from pliant.api.open_encoder import open_encoder
from pliant.cluster.control.messages import Note
from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.cluster.lead.lead_run import RunLeader, RunRecord
from pliant.cluster.lead.measure_links import links_of
from pliant.cluster.lead.open_member import MemberOptions, PrimaryMember, member_lanes, open_primary
from pliant.cluster.lead.predict import Prediction
from pliant.cluster.lead.survey import survey_devices, survey_links
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.cluster.member.run_executor import RunExecutor
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.net.key import make_key
from pliant.cluster.watch.adapt import Topology
from pliant.cluster.watch.update_topology import UnconfirmedRatios, update_topology
from pliant.errors import PliantError
from pliant.ir.capability import Capability, Links
from pliant.ir.dilation import Dilation
from pliant.ir.partition import Partition, Share
from pliant.models.encoder.encoder_architecture import PreparedInput
from pliant.models.encoder.encoder_source import Encoder, EncoderSource
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.run.lanes import Lanes
from pliant.settings import cache_folder
from report import ROOT

PORT = 29500
TOKENS = 256
PRIMARY, SECONDARY = "primary", "secondary"
SLOWER = 7.0
"""The primary's slowdown against the secondary: at 7 the balanced shares are 1/8 and 7/8, the paper's 87.5
%.
"""
PAPER_SLOWER = 2.9
"""The primary's slowdown against the secondary in the paper's testbed, by its Figure 3."""
_CORES = tuple(sorted(os.sched_getaffinity(0)))
_TRIES, _PATIENCE_S = 3, 120.0
_MAIN = "from pliant.cli import main; main()"
_CONFIGS = ROOT / "src" / "pliant" / "models" / "assets" / "encoders"


def pair(mbit: float, slower: float = SLOWER, second: float = 1.0) -> tuple[DeviceSpec, DeviceSpec]:
    """The paper's two devices, on links of `mbit` Mbit/s."""
    bandwidth_Bps = rate(f"{mbit}Mbit")
    return (
        DeviceSpec(PRIMARY, slower=slower, bandwidth_Bps=bandwidth_Bps),
        DeviceSpec(SECONDARY, slower=second, bandwidth_Bps=bandwidth_Bps),
    )


def shortened(config: str, n_layers: int, folder: Path) -> str:
    """A published configuration with fewer layers and random weights, as a user names it."""
    known = msgspec.json.decode((_CONFIGS / f"{config}.json").read_bytes())
    path = folder / f"{config}-{n_layers}.json"
    path.write_bytes(msgspec.json.encode(known | {"num_hidden_layers": n_layers}))
    return f"random:{path}"


def alone(spec: EncoderSpec, tokens: int, device: str = PRIMARY) -> Partition:
    """One device has everything; on the primary that is serial execution."""
    shares = (Share(d, spec.n_heads, tokens) if d == device else Share(d) for d in (PRIMARY, SECONDARY))
    return Partition("ws", PRIMARY, tuple(shares), tokens)


@final
@dataclass(slots=True)
class FixedPlanner:
    """A `RunPlanner` with a fixed plan; `notes` are the reports at its boundaries, in order."""

    held: ReadyPlan | None = None
    notes: list[Mapping[str, Note]] = field(default_factory=list)

    def begin(
        self, source: EncoderSource, tokens: int, without: Collection[str], number: int = 0
    ) -> ReadyPlan:
        assert self.held is not None
        self.notes.clear()
        return self.held

    def next_plan(
        self, number: int, current: ReadyPlan, last: ReadyPlan, notes: Mapping[str, Note]
    ) -> ReadyPlan:
        self.notes.append(notes)
        return current

    def predicted_s(self, held: ReadyPlan) -> float | None:
        return None


@final
@dataclass(slots=True)
class Rig:
    """The cluster; plans stay loaded between runs."""

    network: Network
    leader: PrimaryMember
    lead: RunLeader
    source: Encoder
    fixed: FixedPlanner
    lanes: Lanes
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict)
    _held: dict[tuple[Partition, Coding], ReadyPlan] = field(default_factory=dict)

    def run(self, partition: Partition, coding: Coding = "fp32") -> RunRecord:
        """One inference with this plan; restarted if a worker is lost."""
        for left in reversed(range(_TRIES)):
            try:
                return self._run(partition, coding)
            except PliantError as error:
                if not left:
                    raise
                _say(f"again: {error}")
                self.leader.primary.wait_for(len(list(self.network)) - 1, _PATIENCE_S)
                self._held.clear()
        raise AssertionError("the last try returns or raises")

    def _run(self, partition: Partition, coding: Coding) -> RunRecord:
        key = partition, coding
        if key not in self._held:
            self._held[key], _ = self.leader.primary.plans.prepare(self.source, partition, coding)
        self.fixed.held = self._held[key]
        return self.lead.run(self.source, [PreparedInput(partition.tokens, self.feeds)], partition.tokens)

    def devices(self) -> dict[str, Capability]:
        """Every device's measurement of itself with this model."""
        names = [device.name for device in self.network]
        found = survey_devices(self.leader.primary, self.source, TOKENS, names)
        assert len(found) == len(names), found.keys()
        return found

    def links(self) -> Links:
        """The members' measurements of their links, over the connections that runs use."""
        found = survey_links(self.leader.primary, [device.name for device in self.network])
        assert found, "links were not measured"
        return links_of(found)

    def seen(self, solved: Prediction) -> Topology:
        """The topology after the last run, updated at every boundary; its plan is `solved`."""
        offsets_s = {member.name: member.offset_s for member in self.leader.primary.monitor.members}
        topology = solved.topology
        left: UnconfirmedRatios = {}
        for notes in self.fixed.notes:
            topology, left = update_topology(topology, left, solved, notes, offsets_s)
        return topology

    def release(self) -> None:
        """Free all plans and their weights, here and on the workers."""
        self._held.clear()
        self.leader.primary.plans.forget(())

    def shape(self, mbit: float) -> None:
        """Change every device's bandwidth."""
        for device in self.network:
            self.network.set_bandwidth(device.name, rate(f"{mbit}Mbit"))

    @property
    def primary(self) -> Device:
        return self.network[PRIMARY]


@contextmanager
def open_rig(
    specs: Sequence[DeviceSpec],
    model: str,
    source: Encoder,
    folder: Path,
    tokens: int = TOKENS,
    *,
    paces: Path | None = None,
) -> Iterator[Rig]:
    """Start all devices, with a worker for `model` on each but the first; each has one compute thread.

    `paces` is a folder with a file for each worker that contains its dilation.
    """
    first, fixed = specs[0], FixedPlanner()
    folder.mkdir(parents=True)
    key = make_key(folder / "cluster.key")
    with ExitStack() as ends:
        cores = cores_of(len(specs))
        ends.enter_context(on_core(cores[0]))
        network = ends.enter_context(Network(specs))
        ends.enter_context(inside(network[first.name]))
        address = f"{network[first.name].address}:{PORT}"
        options = MemberOptions(
            name=first.name,
            key=key,
            version=__version__,
            cache=cache_folder(),
            n_threads=1,
            dilation=Dilation(first.slower),
            patience=ClusterTimeouts(silence_s=10.0, prepare_s=300.0),
            on_event=_say,
        )
        leader = ends.enter_context(open_primary(options, address, _unasked))
        lanes = ends.enter_context(member_lanes(first.name, Dilation(first.slower), 1))
        lead = RunLeader(
            leader.primary, RunExecutor(first.name, leader.comm, lanes, lambda: 1 << 40), fixed, n_repeats=0
        )
        for device, core in zip(network, cores, strict=True):
            if device.name != first.name:
                start_worker(device, address, model, folder, paces, core)
        leader.primary.wait_for(len(specs) - 1, _PATIENCE_S)
        feeds = source.prepare(source.sample(tokens)).feeds
        yield Rig(network, leader, lead, source, fixed, lanes, feeds)


def cores_of(n_devices: int) -> Sequence[int | None]:
    """One core of this machine for each device, so that devices do not compete for cores; None if there are
    too few cores.
    """
    return _CORES[:n_devices] if n_devices <= len(_CORES) else [None] * n_devices


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Pin this thread, and those it starts, to `core` during the block."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def start_worker(
    device: Device,
    address: str,
    model: str,
    folder: Path,
    paces: Path | None = None,
    core: int | None = None,
) -> None:
    pace = str(device.spec.slower) if paces is None else f"@{paces / device.name}"
    words = ["worker", "--join", address, "--name", device.name, "--key", str(folder / "cluster.key")]
    words += ["--model", model, "--threads", "1", "--dilate-compute", pace]
    with (folder / f"{device.name}.log").open("ab") as log, on_core(core):
        device.popen([sys.executable, "-c", _MAIN, *words], stdout=log, stderr=log)


def random_model(config: str, n_layers: int, folder: Path) -> tuple[str, Encoder]:
    """The model name for workers, and the encoder."""
    model = shortened(config, n_layers, folder)
    return model, open_encoder(model, folder)


def spread(seconds: Sequence[float]) -> str:
    """Median with minimum and maximum, in milliseconds."""
    return f"{median(seconds) * 1e3:.0f} ({min(seconds) * 1e3:.0f} to {max(seconds) * 1e3:.0f})"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _unasked(*_: object) -> Partition:
    raise AssertionError("a bench says which plan runs")
