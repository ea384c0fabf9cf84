"""What bench/sti.py works with: stores of both quantizers, dilated devices, accuracy, cold runs."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from pliant.importance import Labelled
from pliant.ir.cost import Budget, CostTable, Disk, cost_table
from pliant.ir.device import DeviceProfile, Dilation, LayerTime
from pliant.ir.program import Compute, Load
from pliant.models.checkpoint import open_checkpoint
from pliant.models.examples import Example, read_examples
from pliant.models.tokenizer import Tokenizer, open_tokenizer
from pliant.plan.baseline import preload_model, standard_pipeline
from pliant.plan.result import Grid, Plan
from pliant.plan.shape import store_shape
from pliant.profile.line import timing
from pliant.run.engine import Engine
from pliant.run.session import Reply, Session, SessionOptions
from pliant.store.build import build
from pliant.store.read import Extent, Store, open_store

LOWEST_TARGET_S = 0.040
Quantizer = Literal["lloyd", "equal-population"]


@dataclass(frozen=True, slots=True)
class Preset:
    """A kind of device, relative to its own full-model compute: targets, and IO of a full-fidelity layer."""

    name: str
    is_flat: bool
    io_ratio: float
    targets: tuple[float, ...]


PRESETS = (
    Preset("odroid-like", False, 3.6, (0.08, 0.11, 0.21)),
    Preset("jetson-like", True, 8.3, (0.22, 0.30, 0.59)),
)


class SlowedStore:
    """A store on a disk of less bandwidth: after each read it sleeps as long as its bytes still take.

    The latency of a read stays what it is. Multiplying it too, as the lanes' own dilation does, would
    give a disk that takes 16 ms to begin a read: neither board of the paper has one. `slower` slows
    whole reads on top, latency included.
    """

    def __init__(self, store: Store, by_bandwidth: float, bandwidth_Bps: float) -> None:
        self._store = store
        self._s_per_byte = (by_bandwidth - 1) / bandwidth_Bps
        self.slower = 1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read_extent(self, extent: Extent, buffer: np.ndarray, at: int = 0) -> tuple[int, ...]:
        start_s = time.perf_counter()
        starts = self._store.read_extent(extent, buffer, at)
        took_s = time.perf_counter() - start_s
        sleep_s = self._s_per_byte * extent.n_bytes
        time.sleep(sleep_s + (self.slower - 1) * (took_s + sleep_s))
        return starts


@dataclass(frozen=True, slots=True)
class Device:
    """A preset's emulation on this machine: its profile, and seconds of full-model compute."""

    preset: Preset
    profile: DeviceProfile
    full_s: float
    length: int
    disk: Disk  # this machine's own, measured
    bandwidth: float  # how many times less of it the device has

    def costs(self, *, is_median: bool = False, io_slower: float = 1.0) -> CostTable:
        table = cost_table(self.profile, self.length, "median" if is_median else "p95")
        return replace(table, disk=table.disk.times(io_slower))


def emulate(rig: "Rig", profile: DeviceProfile, preset: Preset, n_runs: int) -> Device:
    """Slow each width's layer and the disk until the preset's ratios hold and its least target is 40 ms.

    Then measure the slowed device itself, by runs of pilot plans: a core that has slept computes its next
    layer slower than one that has not, and slowing multiplies that. Factors and profile follow from there.
    """
    N, M = rig.spec.n_layers, rig.spec.n_heads
    layer_bytes = M * store_shape(rig.spec).full_bytes
    layer_s = LOWEST_TARGET_S / min(preset.targets) / N
    disk, wanted_s = profile.disk, preset.io_ratio * layer_s
    bandwidth = max(1.0, (wanted_s - disk.latency_s) * disk.bandwidth_Bps / layer_bytes)
    slowed = replace(disk, bandwidth_Bps=disk.bandwidth_Bps / bandwidth)
    bare = replace(profile, disk=slowed, disk_p95=slowed, io_slowdown=1.0)
    first = _dilated(rig, bare, bare, Dilation(), preset, disk, bandwidth)
    seen = _pilot(rig, first, n_runs)
    return _dilated(rig, seen, bare, first.profile.dilation, preset, disk, bandwidth)


def _dilated(
    rig: "Rig",
    seen: DeviceProfile,
    bare: DeviceProfile,
    by: Dilation,
    preset: Preset,
    disk: Disk,
    bandwidth: float,
) -> Device:
    """The device of `preset`, when slowed as `by` says it showed the times `seen`."""
    N, M = rig.spec.n_layers, rig.spec.n_heads
    full_s = LOWEST_TARGET_S / min(preset.targets)
    wanted = {m: full_s / N * (1 if preset.is_flat else m / M) for m in bare.widths}
    more = {m: wanted[m] / seen.layer_time(rig.length, m).alone.median_s for m in bare.widths}
    factors = {m: more[m] * by.factor(m) for m in bare.widths}
    base = min(factors.values())
    nearest = [min(bare.widths, key=lambda w, m=m: abs(w - m)) for m in range(1, M + 1)]  # type: ignore[misc]
    dilation = Dilation(max(1.0, base), 1.0, tuple(max(1.0, factors[m] / base) for m in nearest))
    ends = dilation.compute / by.compute
    profile = replace(
        seen,
        layers=tuple(
            replace(s, alone=s.alone.times(more[s.width]), with_io=s.with_io.times(more[s.width]))
            for s in seen.layers
        ),
        overheads=tuple(
            replace(o, embed=o.embed.times(ends), head=o.head.times(ends)) for o in seen.overheads
        ),
        dilation=dilation,
    )
    return Device(preset, profile, full_s, rig.length, disk, bandwidth)


def _pilot(rig: "Rig", device: Device, n_runs: int) -> DeviceProfile:
    """The profile of a slowed device from the spans of runs on it: every width, held and streamed."""
    alone: dict[int, list[float]] = {m: [] for m in device.profile.widths}
    with_io: dict[int, list[float]] = {m: [] for m in device.profile.widths}
    ends: dict[str, list[float]] = {"embed": [], "head": []}
    loads: list[tuple[int, int, float]] = []
    text = rig.texts(1, seed=9)[0]
    shape, costs = store_shape(rig.spec), device.costs()
    for m in device.profile.widths:
        job = (
            replace(shape, widths=(m,)), costs, Budget(1e3, 0), np.ones((shape.n_layers, shape.n_slices))
        )  # fmt: skip
        for p in (preload_model(*job, 6), standard_pipeline(*job, 6), standard_pipeline(*job, 2)):
            for reply in _replies(rig, device, p, [text] * (n_runs + 1))[1:]:
                steps = [step for segment in reply.program.segments for step in segment.steps]
                slower = device.profile.dilation.factor(m) / device.profile.dilation.compute
                for span in reply.spans:
                    match steps[span.step].work:
                        case Compute(kernel="layer"):
                            (alone if p.is_resident else with_io)[m].append(span.seconds)
                        case Compute(kernel=kernel):
                            ends[kernel].append(span.seconds / slower)
                        case Load(n_bytes=n_bytes, n_reads=n_reads):
                            loads.append((n_reads, n_bytes, span.seconds))
    reads, n_bytes, took = (np.array(column, np.float64) for column in zip(*loads, strict=True))
    rows = np.stack([reads, n_bytes], axis=1) / took[:, None]
    latency_s, per_byte_s = np.maximum(np.linalg.lstsq(rows, np.ones(len(took)), rcond=None)[0], 1e-12)
    ratio = took / (latency_s * reads + per_byte_s * n_bytes)
    disk = Disk(float(latency_s), 1 / float(per_byte_s)).times(float(np.median(ratio)))
    over = device.profile.overhead(rig.length)
    return replace(
        device.profile,
        reads=(),
        io_slowdown=1.0,  # the loads above were measured while compute ran
        disk=disk,
        disk_p95=disk.times(max(1.0, float(np.quantile(ratio, 0.95) / np.median(ratio)))),
        layers=tuple(
            LayerTime(rig.length, m, timing(alone[m]), timing([*with_io[m]])) for m in device.profile.widths
        ),
        overheads=(replace(over, embed=timing(ends["embed"]), head=timing(ends["head"])),),
    )


class Rig:
    """One model of one task, packed with both quantizers; answers of any submodel at any bits, kept."""

    def __init__(
        self,
        model: Path,
        dev: Path,
        scratch: Path,
        cache: Path,
        n_threads: int,
        length: int,
        n_dev: int | None,
    ) -> None:
        checkpoint = open_checkpoint(model)
        self.cache, self.n_threads, self.length = cache, n_threads, length
        self.stores: dict[Quantizer, Store] = {}
        self.engines: dict[Quantizer, Engine] = {}
        for quantizer in ("lloyd", "equal-population"):
            path = build(checkpoint, scratch / quantizer, quantizer=quantizer)
            self.stores[quantizer] = open_store(path)
            self.engines[quantizer] = Engine(
                self.stores[quantizer], n_threads=n_threads, cache=cache, tokens=length
            )
        self.spec = checkpoint.spec
        self.tokenizer = open_tokenizer(model, self.spec)
        examples = picked(read_examples(dev, self.spec.head.labels or ()), n_dev)
        self.dev = labelled(self.tokenizer, examples, self.spec.max_tokens)
        self._words = tuple(w for e in examples for w in e.text.split())
        self.labels = np.array([e.label for e in self.dev])
        self._known: dict[object, np.ndarray] = {}

    @property
    def store(self) -> Store:
        return self.stores["lloyd"]

    def predicted(
        self, layers: tuple[int, ...], width: int, bits: Grid, quantizer: Quantizer = "lloyd"
    ) -> np.ndarray:
        """The label of each dev example when all weights are held: int64 [n]."""
        key = (quantizer, layers, width, bits)
        if key not in self._known:
            self._known[key] = self._answers(layers, width, bits, quantizer, self.dev)
        return self._known[key]

    def right(self, plan: Plan, quantizer: Quantizer = "lloyd") -> np.ndarray:
        """Which dev examples `plan` answers right at its planned bits."""
        return self.predicted(plan.layers, plan.width, plan.bits, quantizer) == self.labels

    def right_as_run(self, plan: Plan, grids: Sequence[Grid]) -> np.ndarray:
        """The same with the bits of real runs: example i has those of run i, starting over after the last."""
        found = np.zeros(len(self.dev), bool)
        for grid in set(grids):
            at = [i for i in range(len(self.dev)) if grids[i % len(grids)] == grid]
            if len(at) > len(self.dev) // 2:
                found[at] = (self.predicted(plan.layers, plan.width, grid) == self.labels)[at]
            else:
                some = [self.dev[i] for i in at]
                found[at] = self._answers(plan.layers, plan.width, grid, "lloyd", some) == self.labels[at]
        return found

    def texts(self, n: int, seed: int = 0) -> list[str]:
        """`n` texts of exactly `length` tokens, made of the dev set's own words."""
        rng = np.random.default_rng(seed)
        return [_exactly(self.tokenizer, self._words, self.length, rng) for _ in range(n)]

    def _answers(
        self, layers: tuple[int, ...], width: int, bits: Grid, quantizer: Quantizer, some: Sequence[Labelled]
    ) -> np.ndarray:
        engine = self.engines[quantizer]
        held = np.zeros((self.spec.n_layers, self.spec.n_heads), np.int64)
        held[list(layers), :width] = bits
        engine.hold(held)
        return np.array([int(np.argmax(engine.answer(e.encoded, layers, width))) for e in some])

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()
        for store in self.stores.values():
            store.close()


@dataclass(frozen=True, slots=True)
class Runs:
    """Cold runs of one plan: seconds, predictions, and what the compute lane waited, as shares of the run."""

    target_s: float
    seconds: np.ndarray
    predicted_s: float
    first_wait: float
    later_wait: float
    io_per_compute: float
    grids: tuple[Grid, ...]
    is_as_planned: float
    weight_bytes: int

    @property
    def n_met(self) -> int:
        return int(np.sum(self.seconds <= self.target_s))

    @property
    def met(self) -> str:
        return f"{self.n_met} of {len(self.seconds)}"


def cold_runs(
    rig: Rig,
    device: Device,
    plan: Plan,
    texts: Sequence[str],
    *,
    slow_after: Callable[[int], float] | None = None,
) -> Runs:
    """Run `plan` once a text, every read past the page cache; `slow_after(i)` seconds into run i, IO is
    slowed to a third, latencies included."""
    replies = _replies(rig, device, plan, [*texts[:2], *texts], slow_after)[2:]
    waits = np.array([_waits(r) for r in replies])
    return Runs(
        target_s=plan.budget.latency_s,
        seconds=np.array([r.seconds for r in replies]),
        predicted_s=float(np.median([r.predicted_s for r in replies])),
        first_wait=float(np.median(waits[:, 0])),
        later_wait=float(np.median(waits[:, 1])),
        io_per_compute=float(np.median(waits[:, 2])),
        grids=tuple(r.bits for r in replies),
        is_as_planned=float(np.mean([r.bits == r.planned_bits for r in replies])),
        weight_bytes=max(r.resident_weight_bytes for r in replies),
    )


def _replies(
    rig: Rig,
    device: Device,
    plan: Plan,
    texts: Sequence[str],
    slow_after: Callable[[int], float] | None = None,
) -> list[Reply]:
    options = SessionOptions(
        latency_s=plan.budget.latency_s, preload_bytes=plan.budget.preload_bytes, length=rig.length,
        n_threads=rig.n_threads, is_anytime=plan.is_anytime, best_effort=True,
    )  # fmt: skip
    replies: list[Reply] = []
    store = SlowedStore(rig.store, device.bandwidth, device.disk.bandwidth_Bps)
    slowed = cast(Store, store)
    with undisturbed(), Session(slowed, device.profile, options, cache=rig.cache, fixed=plan) as session:
        for i, text in enumerate(texts):
            timer = None
            if slow_after is not None and i >= 2:
                timer = threading.Timer(slow_after(i - 2), _slow, (store,))
                timer.start()
            reply = session(text)
            if timer is not None:
                timer.cancel()
                timer.join()
            session._lanes.drain()  # a cold run begins with an idle disk
            store.slower = 1.0
            replies.append(reply)
    return replies


@contextmanager
def undisturbed() -> Iterator[bool]:
    """Real-time priority for this thread and those it starts, where the system grants it: on a shared
    machine every other job's slice would be multiplied by the dilation."""
    if not hasattr(os, "sched_setscheduler"):
        yield False
        return
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def picked(examples: Sequence[Example], limit: int | None) -> Sequence[Example]:
    """All examples, or `limit` of them spread evenly."""
    if limit is None or limit >= len(examples):
        return examples
    return [examples[int(i)] for i in np.linspace(0, len(examples) - 1, limit)]


def labelled(tokenizer: Tokenizer, examples: Sequence[Example], max_tokens: int) -> tuple[Labelled, ...]:
    """Tokenised examples; pairs that might pass the model's limit lose the ends of both texts."""
    found = []
    for e in examples:
        text, pair = e.text, e.pair
        if len(text.split()) + len((pair or "").split()) > max_tokens // 2 and pair is not None:
            pair = " ".join(pair.split()[: max_tokens // 4])
            text = " ".join(text.split()[: max_tokens // 4])
        found.append(Labelled(tokenizer.encode(text, pair), e.label))
    return tuple(found)


def spread(grids: Sequence[Grid]) -> str:
    """The most frequent mean bits of real runs, and how often."""
    means = Counter(round(float(np.mean([min(b, 16) for row in g for b in row])), 2) for g in grids)
    value, count = means.most_common(1)[0]
    return f"{value} ({count} of {len(grids)})"


def _slow(store: SlowedStore) -> None:
    store.slower = 3.0


def _waits(reply: Reply) -> tuple[float, float, float]:
    """Shares of the run that compute waited before its first layer, and after; IO per compute second."""
    steps = [step for segment in reply.program.segments for step in segment.steps]
    cpu = [s for s in reply.spans if isinstance(steps[s.step].work, Compute)]
    io_s = sum(s.seconds for s in reply.spans if isinstance(steps[s.step].work, Load))
    gaps = [max(0.0, b.start_s - a.end_s) for a, b in pairwise(cpu)]
    compute_s = sum(s.seconds for s in cpu[1:-1])
    return gaps[0] / reply.seconds, sum(gaps[1:]) / reply.seconds, io_s / max(compute_s, 1e-9)


def _exactly(tokenizer: Tokenizer, words: Sequence[str], length: int, rng: np.random.Generator) -> str:
    at = int(rng.integers(0, len(words)))
    text: list[str] = []
    deadline = time.perf_counter() + 5
    while time.perf_counter() < deadline:
        at = (at + 1) % len(words)
        n = tokenizer.encode(" ".join([*text, words[at]])).n_tokens
        if n <= length:
            text.append(words[at])
        if n == length:
            break
    return " ".join(text)
