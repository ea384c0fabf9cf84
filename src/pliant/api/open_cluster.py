"""One inference over several devices, from Python: open a cluster, see who is there, plan, run.

What a user calls a model becomes an encoder, the device's own key and folders are found here; everything else
is `pliant.cluster`.
"""

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar, final

import numpy as np

from pliant.api.cluster_page import cluster_page
from pliant.api.model import CheckpointModel, EncoderModel, RandomWeights, StoreModel, refused
from pliant.api.resolve import resolve
from pliant.cluster.control.inquire import inquire
from pliant.cluster.control.patience import Patience
from pliant.cluster.lead.choose_partition import AnyMode, Shares, chooser
from pliant.cluster.lead.explain_partition import explain as explained
from pliant.cluster.lead.explain_partition import misfits
from pliant.cluster.lead.lead_run import Led
from pliant.cluster.lead.margin import Margins
from pliant.cluster.lead.open_member import Leader, MemberOptions, open_primary
from pliant.cluster.lead.overview import ClusterStatus
from pliant.cluster.lead.overview import MemberStatus as MemberStatus
from pliant.cluster.lead.predict import Solved
from pliant.cluster.lead.record import record, segment_ends
from pliant.cluster.lead.run_log import Fault
from pliant.cluster.lead.steer import Switch
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.net.connect_members import PORT as PORT
from pliant.cluster.net.connect_members import Engine
from pliant.cluster.net.key import Key, default_path, read_key
from pliant.errors import ClusterError, InputError
from pliant.ir.cost import Span, SpanState, latency, simulate
from pliant.ir.partition import Mode, Partition
from pliant.ir.program import Exchange, Program, value
from pliant.models.encoder.encoder_directory import open_directory
from pliant.models.encoder.encoder_random import random_encoder
from pliant.models.encoder.encoder_source import Encoder
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.ahead_timeline import ahead
from pliant.plan.split.stage_graphs import weight_bytes
from pliant.quantities import parse_bytes, parse_seconds
from pliant.settings import cache_folder, thread_count
from pliant.store.store_encoder import stored_encoder

Model = str | os.PathLike[str] | Encoder
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What would run: each device's share and weights, and what it should take. It prints as a page.

    `misfits` say whose weights do not fit in its memory; `reasons` why this plan, where that was asked.
    """

    mode: Mode
    partition: Partition
    predicted_s: float
    layer_s: float
    deadline_s: float | None
    weight_bytes: Mapping[str, int]
    program: Program
    spans: tuple[Span, ...]
    misfits: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def met(self) -> bool | None:
        """Whether the deadline is met by prediction; None where there is none."""
        return None if self.deadline_s is None else self.predicted_s <= self.deadline_s

    def __str__(self) -> str:
        return cluster_page(self)


@dataclass(frozen=True, slots=True)
class ClusterReply:
    """An answer, what it took and should have taken, and what happened on the way.

    `spans` and `predicted_spans` have one entry a step of `program`; `sent_bytes` is what exchanges moved.
    """

    answer: np.ndarray
    label: str | None
    seconds: float
    predicted_s: float
    n_tokens: int
    mode: Mode
    partitions: tuple[Partition, ...]
    faults: tuple[Fault, ...]
    switches: tuple[Switch, ...]
    sent_bytes: int
    program: Program
    spans: tuple[Span, ...]
    predicted_spans: tuple[Span, ...]


@final
class Cluster:
    """This process as the primary of a cluster; a context manager.

    Workers join at `listen` with `pliant worker --join` and must hold the same `key` (a file, or the
    default one of `pliant cluster key`). Names are unique in a cluster; without `name` it is "primary-" and
    six digits drawn at random, so that two primaries on one machine differ. `memory` bounds what a model may
    take here, `mode` fixes Hepti's mode, `shares` are the best, equal or CoEdge's, `exchange` is how
    activations travel; with `engine` gloo, which workers must be given too, they travel through
    torch.distributed, unencrypted; with zmq they come in at `data_port`, or the first free one of a range
    such as `29501-29510`. With `announce`, workers may find
    it by multicast DNS. Devices and links are measured before their first plan unless `measure` is off, which
    it is for equal shares. Threads may share it: runs and plans take turns. It belongs to its process, and
    raises ClusterError in a forked child. Raises ClusterError: see errors.py for which.
    """

    def __init__(
        self,
        listen: str = f"127.0.0.1:{PORT}",
        *,
        key: Key | str | os.PathLike[str] | None = None,
        name: str | None = None,
        threads: int | None = None,
        memory: str | int | None = None,
        mode: AnyMode = "auto",
        shares: Shares = "best",
        exchange: Coding = "fp32",
        engine: Engine = "zmq",
        data_port: str | int | None = None,
        announce: bool = False,
        adapt: bool = True,
        measure: bool | None = None,
        dilation: float | Callable[[], float] = 1.0,
        patience: Patience = Patience(),  # noqa: B008 - frozen
        cache: Path | None = None,
        on_event: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._cache, self._margins = cache_folder(cache), Margins()
        self.name = primary_name() if name is None else name
        options = MemberOptions(
            name=self.name,
            key=cluster_key(key),
            version=version("pliant"),
            cache=self._cache,
            n_threads=thread_count(threads),
            free_bytes=memory_source(memory),
            dilation=dilation,
            engine=engine,
            data_ports=data_ports(data_port),
            patience=patience,
            on_event=on_event,
        )
        is_measuring = shares != "equal" if measure is None else measure
        self._opened, self._is_closed = ExitStack(), False
        leading = open_primary(
            options,
            listen,
            chooser(mode, shares, lambda: self._margins.least_gain),
            coding=exchange,
            is_adaptive=adapt,
            is_measuring=is_measuring,
        )
        self._leader: Leader = self._opened.enter_context(leading)
        self._sources: dict[str, Encoder] = {}
        self._turns, self._opening, self._process = Lock(), Lock(), os.getpid()
        self._coding: Coding = exchange
        self._on_event = on_event
        self.address = listen if self._leader.messenger.address is None else self._leader.messenger.address
        if announce:
            self._announce(options)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye to the workers and let go of everything, after the run under way; safe to call twice.

        Any other call raises InputError afterwards. A forked child lets go of nothing: connections and
        threads are its parent's.
        """
        if self._process == os.getpid():
            with self._turns:
                self._is_closed = True
                self._opened.close()

    def _announce(self, options: MemberOptions) -> None:
        try:
            from pliant.cluster.control.discover import announced

            self._opened.enter_context(announced(options.name, self.address, options.key))
        except ClusterError:
            self.close()
            raise

    def wait(self, n_workers: int, timeout: str | float = 30.0) -> None:
        """Return once so many workers can be used. Raises ClusterError naming who came."""
        self._check_open()
        if n_workers:
            noun = "worker" if n_workers == 1 else "workers"
            self._on_event(f"waiting for {n_workers} {noun} at {self.address.removeprefix('tcp://')}")
        self._leader.primary.wait_for(n_workers, parse_seconds(timeout))

    def status(self) -> tuple[MemberStatus, ...]:
        """Every worker that ever joined, by name."""
        self._check_open()
        return self._leader.primary.status().members

    @property
    def problems(self) -> tuple[str, ...]:
        """Who was turned away before it could be listed, and why: for people."""
        return self._leader.messenger.problems

    def plan(
        self, model: Model, tokens: int, latency: str | float | None = None, *, explain: bool = False
    ) -> ClusterPlan:
        """What a run of so many tokens would do now; nothing is loaded. `explain` takes a second more."""
        deadline_s = None if latency is None else parse_seconds(latency)
        source = self.open(model)
        spec = source.spec
        with self._turns:
            self._check_open()
            self._leader.steering.measure(source, tokens)
            solved = self._leader.steering.solve(spec, tokens)
        least_gain = self._margins.least_gain
        reasons = explained(spec, solved, self.name, least_gain, self._coding) if explain else ()
        return replace(_plan_of(spec, solved, deadline_s), reasons=reasons)

    def sample(self, model: Model, tokens: int, seed: int = 0) -> Mapping[str, np.ndarray]:
        """Random feeds of so many rows. Raises InputError for rows that the model cannot have."""
        return self.open(model).sample(tokens, seed)

    def run(
        self,
        model: Model,
        feeds: Mapping[str, np.ndarray] | str,
        pair: str | None = None,
        *,
        is_alone: bool = False,
    ) -> ClusterReply:
        """The model's answer to a text, or to feeds such as `ids` and `types`, over whoever can be used.

        A worker that fails on the way costs the layer it failed in, not the answer. `is_alone` leaves all
        workers out. Raises InputError for feeds that do not fit, ModelError for a model that cannot be read.
        """
        source = self.open(model)
        prepared = source.prepare(feeds if isinstance(feeds, Mapping) else source.read(feeds, pair))
        with self._turns:
            self._check_open()
            led = self._leader.lead.run(source, prepared.rows, prepared.feeds, is_alone=is_alone)
            return self._reply(source, led, prepared.rows)

    def _check_open(self) -> None:
        """Raise InputError once closed, ClusterError in a forked child."""
        if self._process != os.getpid():
            raise ClusterError(
                "this cluster belongs to the process that opened it, and this is a forked child: ask there, "
                "or open a cluster here."
            )
        if self._is_closed:
            raise InputError("this cluster is closed; open another one.")

    def _reply(self, source: Encoder, led: Led, n_tokens: int) -> ClusterReply:
        recorded = record(led)
        steering = self._leader.steering
        spans = _predicted(recorded.program, [steering.solved(held) for held in led.plans])
        is_whole = all(span.state is SpanState.RAN for span in recorded.spans)
        if is_whole and not led.faults and len({held.number for held in led.plans}) == 1:
            predicted_s, layers_s = (_layers_s(recorded.program, one) for one in (spans, recorded.spans))
            self._margins.observe(led.plans[0].partition, predicted_s, layers_s)
        exchanges = [step.work for step in recorded.program.steps if isinstance(step.work, Exchange)]
        label = None
        if source.labels is not None and led.answer.size == len(source.labels):
            label = source.labels[int(led.answer.argmax())]
        return ClusterReply(
            answer=led.answer,
            label=label,
            seconds=led.seconds,
            predicted_s=latency(spans),
            n_tokens=n_tokens,
            mode=led.plans[-1].partition.mode,
            partitions=tuple(held.partition for held in led.plans),
            faults=led.faults,
            switches=tuple(steering.switches),
            sent_bytes=sum(value(work.n_bytes, {}) for work in exchanges),
            program=recorded.program,
            spans=recorded.spans,
            predicted_spans=spans,
        )

    def open(self, model: Model) -> Encoder:
        """The model that `model` names, opened once. Raises ModelError where it cannot be read."""
        self._check_open()
        if isinstance(model, Encoder):
            return model
        name = os.fspath(model)
        with self._opening:
            if name not in self._sources:
                self._sources[name] = open_encoder(name, self._cache)
            return self._sources[name]


def cluster_status(
    address: str = f"127.0.0.1:{PORT}",
    *,
    key: Key | str | os.PathLike[str] | None = None,
    timeout: str | float = 5.0,
) -> ClusterStatus:
    """The state of the primary that runs at `address`, HOST:PORT, and holds `key`; runs go on undisturbed.

    Raises ClusterError where none answers within `timeout`.
    """
    return inquire(address, cluster_key(key), parse_seconds(timeout))


def primary_name() -> str:
    """A name that no other primary has: two on one machine would be taken for one by their workers."""
    return f"primary-{secrets.token_hex(3)}"


def open_encoder(source: str | os.PathLike[str], cache: Path) -> Encoder:
    """The encoder that `source` names; hashes of files are kept in `cache`. Raises ModelError, StoreError."""
    match resolve(source):
        case StoreModel() as model:
            return stored_encoder(model.path)
        case CheckpointModel(path=Path() as path) | EncoderModel(weights=Path() as path):
            return open_directory(path, cache)
        case EncoderModel(weights=RandomWeights(config, seed)):
            return random_encoder(config, seed)
        case model:
            raise refused(model, "a cluster")


def cluster_key(key: Key | str | os.PathLike[str] | None) -> Key:
    """The key in a file, or in the user's own. Raises ClusterError where there is none."""
    if isinstance(key, Key):
        return key
    return read_key(default_path() if key is None else Path(key))


def memory_source(memory: str | int | None) -> Callable[[], int] | None:
    """What a model may take: so many bytes, or what is written in a file (`@PATH`) whenever it is asked."""
    if memory is None:
        return None
    if isinstance(memory, str) and memory.startswith("@"):
        return _Watched(Path(memory[1:]), parse_bytes, "a size such as 1GB")
    n_bytes = parse_bytes(memory)
    return lambda: n_bytes


def data_ports(asked: str | int | None) -> Sequence[int]:
    """Where tensors may come in: any free port (None), one, or those of a range such as `29501-29510`."""
    if asked is None:
        return (0,)
    first, dash, last = str(asked).partition("-")
    ends = [int(end) if end.isascii() and end.isdigit() else 0 for end in (first, last if dash else first)]
    if not 0 < ends[0] <= ends[1] < 1 << 16:
        raise InputError(
            f"{asked!r} is no port for tensors: give one of 1 to 65535, or a range such as 29501-29510."
        )
    return range(ends[0], ends[1] + 1)


def pace_source(dilation: str) -> Callable[[], float]:
    """How many times slower a device computes: a number, or what is written in a file (`@PATH`)."""
    if dilation.startswith("@"):
        return _Watched(Path(dilation[1:]), _parse_pace, "a number such as 4")
    times = _parse_pace(dilation)
    return lambda: times


def _parse_pace(text: str) -> float:
    try:
        times = float(text)
    except ValueError:
        times = 0.0
    if not 1 <= times < float("inf"):
        raise InputError(f"a device is emulated as 1 or more times slower, not {text.strip()!r}.")
    return times


class _Watched(Generic[T]):
    """What a file says whenever it is asked; the last that it said, once it cannot be read."""

    def __init__(self, path: Path, parse: Callable[[str], T], what: str) -> None:
        self._path, self._parse, self._what = path, parse, what
        self._last = self._read()

    def __call__(self) -> T:
        with suppress(InputError):
            self._last = self._read()
        return self._last

    def _read(self) -> T:
        try:
            return self._parse(self._path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise InputError(
                f"@{self._path} cannot be read: {reason}. Name a file that holds {self._what}."
            ) from error


def _predicted(program: Program, planned: Sequence[Solved]) -> tuple[Span, ...]:
    """Every segment by the plan that it ran by; the spans of the whole."""
    spans: list[Span] = []
    start_s = 0.0
    ran = zip(program.segments, planned, strict=True)
    for _, some in groupby(ran, key=lambda one: id(one[1])):
        segments, (solved, *_) = zip(*some, strict=True)
        part = ahead(Program(segments, (), ()), solved.partition.primary)
        for span in simulate(part, solved.cost):
            moved = replace(span, step=len(spans), start_s=start_s + span.start_s, end_s=start_s + span.end_s)
            spans.append(moved)
        start_s = max((span.end_s for span in spans), default=0.0)
    return tuple(spans)


def _layers_s(program: Program, spans: Sequence[Span]) -> float:
    """From the end of the input's segment to the end of the last layer: the head is not predicted."""
    ends = segment_ends(program, spans)
    return ends[-2] - ends[0]


def _plan_of(spec: EncoderSpec, solved: Solved, deadline_s: float | None) -> ClusterPlan:
    return ClusterPlan(
        mode=solved.partition.mode,
        partition=solved.partition,
        predicted_s=solved.seconds,
        layer_s=solved.layer_s,
        deadline_s=deadline_s,
        weight_bytes=weight_bytes(spec, solved.partition),
        program=solved.program,
        spans=solved.spans,
        misfits=misfits(weight_bytes(spec, solved.partition), solved.picture),
    )
