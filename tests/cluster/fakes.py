"""A cluster in this process: control messages through queues, made-up layers, and faults on demand."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np

from pliant.cluster.control.message_codec import decode, encode
from pliant.cluster.control.messages import AnyMessage, Bye, Note, Pong, UnreadableMessage
from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.cluster.lead.lead_run import Pause, RunLeader
from pliant.cluster.lead.plan_distribution import PlanNotReadyError
from pliant.cluster.lead.primary import Primary
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.cluster.member.run_executor import LoadedWeights, RunExecutor
from pliant.cluster.member.worker import ClusterWorker, WorkerOffer
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.net.comm import Comm
from pliant.cluster.net.comm_memory import MemoryNetwork
from pliant.cluster.session.cluster_batches import packed_rows
from pliant.errors import PeerLostError
from pliant.ir.capability import Capability
from pliant.ir.envelope import VERSION, EnvelopeError
from pliant.ir.graph import Graph
from pliant.ir.partition import Mode, Partition, Share
from pliant.ir.program import Compute, Exchange
from pliant.models.encoder.encoder_architecture import PreparedInput
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.run.lanes import Lanes
from tests.cluster.lossy import LossyNetwork
from tests.plan.splits import bert, cut

Hear = Callable[[str, AnyMessage], None]
CALM = ClusterTimeouts(silence_s=1.5, least_s=4.0, times=1.0, grace_s=0.1, prepare_s=20.0, report_s=10.0)
"""Short enough to wait for, long enough for threads that a busy machine keeps waiting for half a second."""


class Wires:
    """Control connections of one process. A member that is `cut` hears and says nothing.

    What a member says is in its version of `versions`, and goes through its `rewrite`.
    """

    def __init__(self, silence_s: float) -> None:
        self.silence_s = silence_s
        self.members: dict[str, MemoryControlChannel] = {}
        self.cut: set[str] = set()
        self.rewrite: dict[str, Callable[[bytes], bytes]] = {}
        self.versions: dict[str, int] = {}
        self.last_heard: dict[tuple[str, str], float] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def join(self, name: str) -> "MemoryControlChannel":
        self.members[name] = control = MemoryControlChannel(name, self)
        return control

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(self.silence_s / 4):
            for a in list(self.members.values()):
                for b in list(self.members.values()):
                    if a is not b and a.is_open and b.is_open and not {a.name, b.name} & self.cut:
                        self.last_heard[a.name, b.name] = time.monotonic()
            for (a_name, b_name), when in list(self.last_heard.items()):
                if time.monotonic() - when > self.silence_s:
                    del self.last_heard[a_name, b_name]
                    if a_name in self.members:
                        self.members[a_name].on_silence(b_name)


class MemoryControlChannel:
    """A `ControlChannel`; messages arrive on a thread of its own once `start` was called."""

    def __init__(self, name: str, wires: Wires) -> None:
        self.name, self.wires = name, wires
        self.is_open = True
        self.on_message: Hear = lambda peer, message: None
        self.on_silence: Callable[[str], None] = lambda peer: None
        self.inbox: SimpleQueue[tuple[str, bytes] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def start(self, on_message: Hear, on_silence: Callable[[str], None]) -> None:
        self.on_message, self.on_silence = on_message, on_silence
        self._thread.start()

    def connect(self, address: str) -> None:
        raise NotImplementedError

    def send(self, peer: str, message: AnyMessage) -> None:
        version = min(self.wires.versions.get(name, VERSION) for name in (self.name, peer))
        self.post(peer, encode(message, self.name, 0, version))

    def post(self, peer: str, data: bytes) -> None:
        """Send what may be no message."""
        other = self.wires.members.get(peer)
        if other is not None and other.is_open and self.is_open and not {peer, self.name} & self.wires.cut:
            self.wires.last_heard[peer, self.name] = time.monotonic()
            other.inbox.put((self.name, self.wires.rewrite.get(self.name, bytes)(data)))

    def heard_s_ago(self, peer: str) -> float:
        when = self.wires.last_heard.get((self.name, peer))
        return float("inf") if when is None else time.monotonic() - when

    @property
    def peers(self) -> Collection[str]:
        return [name for name in self.wires.members if name != self.name]

    @property
    def problems(self) -> Collection[str]:
        return ()

    def close(self) -> None:
        self.is_open = False
        self.inbox.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _listen(self) -> None:
        while (item := self.inbox.get()) is not None:
            peer, data = item
            message = _read(data, peer)
            if isinstance(message, Bye):
                self.on_silence(peer)
            else:
                self.on_message(peer, message)


def _read(data: bytes, peer: str) -> AnyMessage:
    """As a messenger hands it on."""
    try:
        return decode(data).body
    except EnvelopeError as error:
        return UnreadableMessage(f"{peer} sent {error}", error.is_other_version)


class SyntheticSource:
    """An `EncoderSource` whose layers the holder below makes up."""

    def __init__(self, spec: EncoderSpec, identity: str = "made-up") -> None:
        self.spec, self.identity = spec, identity

    @property
    def whole(self) -> "SyntheticSource":
        return self

    def submodel(self, n_layers: int, n_heads: int, /) -> "SyntheticSource":
        raise NotImplementedError

    def tensor(self, name: str, /) -> np.ndarray:
        raise NotImplementedError

    def input(self, rows: int, /) -> Graph:
        raise NotImplementedError

    def head(self, rows: int, /) -> Graph:
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError


def expected(spec: EncoderSpec, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    """The answer that any partition must give."""
    x = feeds["x"]
    for k in range(spec.n_layers):
        x = _rest(_attend(x, range(spec.attended), k, (len(x),)), x)
    return x.sum(axis=1)


def _attend(x: np.ndarray, columns: range, layer: int, lengths: Sequence[int]) -> np.ndarray:
    """Each row reads itself and the first row of its text."""
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    factors = np.array([np.sin(1 + layer + c) for c in columns], np.float32)
    means = x.mean(axis=1, keepdims=True)
    return np.ascontiguousarray((means + means[first]) * factors, np.float32)


def _rest(attended: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.tanh(x + attended.sum(axis=1, keepdims=True, dtype=np.float32))


Before = Callable[[Compute], None]


class FakeStageRunner:
    """Stages of the weight-stationary mode on whole tensors; calls `before` ahead of each stage."""

    def __init__(self, name: str, spec: EncoderSpec, partition: Partition, before: Before) -> None:
        self.name, self.spec, self.partition, self.before = name, spec, partition, before
        self.loaded = LoadedWeights(0, 0.0)
        self.tensors = {"attended": np.zeros((partition.tokens, spec.attended), np.float32)}
        for k in range(spec.n_layers + 1):
            self.tensors[f"x.{k}"] = np.zeros((partition.tokens, spec.hidden), np.float32)

    def compute(self, step: int, work: Compute, lengths: tuple[int, ...] = ()) -> None:
        self.before(work)
        lengths = lengths or (self.partition.tokens,)
        tensors, rows = self.tensors, self.partition.rows(self.name)
        match work.kernel, work.layer:
            case "input", _:
                tensors["x.0"][...] = 0.0
                tensors["x.0"][: sum(one.rows for one in self.inputs)] = np.concatenate(
                    [one.feeds["x"] for one in self.inputs]
                )
            case "head", _:
                sums = tensors[f"x.{self.spec.n_layers}"].sum(axis=1)
                ends = np.cumsum([one.rows for one in self.inputs])
                self.results = tuple(np.split(sums[: ends[-1]], ends[:-1]))
            case "attend", int(k):
                heads, d = self.partition.heads(self.name), self.spec.head_dim
                own = range(heads.start * d, heads.stop * d)
                tensors["attended"][:, own.start : own.stop] = _attend(tensors[f"x.{k}"], own, k, lengths)
            case "rest", int(k):
                cut = slice(rows.start, rows.stop)
                tensors[f"x.{k + 1}"][cut] = _rest(tensors["attended"][cut], tensors[f"x.{k}"][cut])
            case _:
                raise AssertionError(work)

    def view(self, work: Exchange) -> np.ndarray:
        part = work.part
        assert part is not None
        tensor = self.tensors[work.tensor]
        return tensor[part.rows.start : part.rows.stop, part.columns.start : part.columns.stop]

    def begin(self, inputs: Sequence[PreparedInput]) -> None:
        self.inputs = inputs

    def state(self, layer: int) -> np.ndarray:
        return self.tensors[f"x.{layer}"]

    def answers(self) -> tuple[np.ndarray, ...]:
        return self.results


class FakeStageBuilder:
    """Makes such stages and keeps nothing."""

    def __init__(self, name: str, before: Before) -> None:
        self.name, self.before = name, before
        self.n_replaced = 0

    def prepare(self, source: EncoderSource, partition: Partition) -> FakeStageRunner:
        return FakeStageRunner(self.name, source.spec, partition, self.before)

    def replace(self, source: EncoderSource, partition: Partition) -> FakeStageRunner:
        self.n_replaced += 1
        return self.prepare(source, partition)

    def measure(self, source: EncoderSource, tokens: int, *, is_primary: bool = False) -> Capability:
        return Capability(1.0, 1e9, 10**9)

    def keep(self, holders: Collection[object]) -> None:
        return None


def spread(
    spec: EncoderSpec, tokens: int, primary: str, devices: Collection[str], seed: int = 0
) -> Partition:
    """An uneven weight-stationary partition over `devices`, each with at least a row and a head if it can."""
    rng = np.random.default_rng(seed)
    names = [primary, *sorted(set(devices) - {primary})]
    heads, rows = (_shared(rng, total, len(names)) for total in (spec.n_heads, tokens))
    shares = tuple(Share(*one) for one in zip(names, heads, rows, strict=True))
    return Partition("ws", primary, shares, tokens)


def _shared(rng: np.random.Generator, total: int, parts: int) -> list[int]:
    if total < parts:
        return [1] * total + [0] * (parts - total)
    return [1 + n for n in cut(rng, total - parts, parts)]


@dataclass
class SpreadingPlanner:
    """A `RunPlanner` without a reason: everybody who is here takes part, unevenly."""

    primary: Primary
    mode: Mode = "ws"
    coding: Coding = "fp32"
    seed: int = 0
    switches: dict[int, ReadyPlan] = field(default_factory=dict)
    layer_s: float | None = 0.1
    pauses: Collection[int] = ()
    halts: Collection[int] = ()

    def begin(
        self, source: EncoderSource, tokens: int, without: Collection[str], number: int = 0
    ) -> ReadyPlan:
        left_out = set(without)
        while True:
            here = [m.name for m in self.primary.monitor.usable() if m.name not in left_out]
            self.seed += 1
            partition = spread(source.spec, tokens, self.primary.name, here, self.seed)
            try:
                return self.primary.plans.prepare(
                    source, partition, self.coding, is_in_place=number in (*self.pauses, *self.halts)
                )[0]
            except PlanNotReadyError as error:
                left_out |= set(error.reasons)

    def next_plan(
        self, number: int, current: ReadyPlan, last: ReadyPlan, notes: Mapping[str, Note]
    ) -> ReadyPlan | Pause:
        if number - 1 in self.halts:
            return Pause.NOW
        return Pause.NEXT if number in self.pauses else self.switches.get(number, current)

    def predicted_s(self, held: ReadyPlan) -> float | None:
        return self.layer_s


@dataclass
class Machine:
    """One worker of the fake cluster and what may be done to it."""

    name: str
    control: MemoryControlChannel
    comm: Comm
    lanes: Lanes
    worker: ClusterWorker
    thaw: threading.Event

    def kill(self) -> None:
        """It is gone at once, without a goodbye."""
        self.thaw.set()
        self.control.close()
        self.comm.close()
        self.worker.close()
        self.lanes.close()


class FakeCluster:
    """A primary `p` and workers by name, over memory; a context manager."""

    def __init__(
        self,
        spec: EncoderSpec | None = None,
        patience: ClusterTimeouts = CALM,
        network: MemoryNetwork | LossyNetwork | None = None,
    ) -> None:
        self.spec = spec or bert(n_layers=4)
        self.source = SyntheticSource(self.spec)
        self.patience = patience
        self.network = MemoryNetwork() if network is None else network
        self.wires = Wires(patience.silence_s)
        self.events: list[str] = []
        self.before: dict[str, Before] = {}
        self.machines: dict[str, Machine] = {}
        control, self.comm = self.wires.join("p"), self.network.join("p")
        self.lanes = Lanes((), own="p/cpu", is_single=True)
        hold = FakeStageBuilder("p", self._before("p"))
        self.primary = Primary(
            "p", control, self.comm, hold, version="1", patience=patience, on_event=self.events.append
        )
        self.executor = RunExecutor("p", self.comm, self.lanes, lambda: 10**9, on_note=self._note)
        self.steer = SpreadingPlanner(self.primary)
        self.lead = RunLeader(self.primary, self.executor, self.steer)
        self.control = control
        control.start(self._hear, self.primary.handle_lost_peer)

    def _hear(self, peer: str, message: AnyMessage) -> None:
        if not isinstance(message, Pong):  # all members read one clock: none is guessed
            self.primary.handle_message(peer, message)

    def _note(self, peer: str, note: Note) -> None:
        self.lead.note(peer, note)

    def _before(self, name: str) -> Before:
        return lambda work: self.before.get(name, lambda work: None)(work)

    def add(self, name: str, models: Collection[str] = ("made-up",), free_bytes: int = 10**9) -> Machine:
        control, comm = self.wires.join(name), self.network.join(name)
        lanes = Lanes((), own=f"{name}/cpu", is_single=True)
        hold = FakeStageBuilder(name, self._before(name))
        offer = WorkerOffer("1", {m: SyntheticSource(self.spec, m) for m in models}, lambda: free_bytes, 1)
        worker = ClusterWorker(name, control, comm, lanes, offer, hold)
        control.start(worker.handle_message, worker.handle_lost_peer)
        self.machines[name] = Machine(name, control, comm, lanes, worker, threading.Event())
        return self.machines[name]

    def run(self, *lengths: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, object]:
        """(answers of inputs of `lengths` in a row, expected ones, what the run says of itself)."""
        lengths = lengths or (7,)
        x = np.random.default_rng(seed).standard_normal((sum(lengths), self.spec.hidden)).astype(np.float32)
        feeds = [{"x": one} for one in np.split(x, np.cumsum(lengths)[:-1])]
        inputs = [PreparedInput(len(one["x"]), one) for one in feeds]
        led = self.lead.run(self.source, inputs, packed_rows(lengths, self.spec.max_rows))
        wanted = np.concatenate([expected(self.spec, one) for one in feeds])
        return np.concatenate(led.answers), wanted, led

    def __enter__(self) -> "FakeCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.primary.close()
        for machine in self.machines.values():
            machine.kill()
        self.control.close()
        self.comm.close()
        self.lanes.close()
        self.wires.close()


def lost(peer: str) -> PeerLostError:
    return PeerLostError(f"{peer} is gone", peer)
