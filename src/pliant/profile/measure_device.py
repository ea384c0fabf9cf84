"""Measure a device's speed on layers of one shape (STI 5.2)."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Protocol, runtime_checkable

import numpy as np

from pliant.errors import ProfileError
from pliant.ir.bitwidths import FULL_BITS, PLANES
from pliant.ir.device import DeviceProfile, LayerTime, Overhead, ShardRead
from pliant.ir.program import FULL, SliceRun
from pliant.kernels.emit.isa import host_isa
from pliant.models.spec import ModelSpec
from pliant.models.tokenizer import TokenizedInput, Tokenizer, open_tokenizer
from pliant.profile.disk_fit import fit_disks, timing
from pliant.profile.system_memory import memory_bytes
from pliant.profile.timing_rounds import Clock, TimedFunction, time_in_rounds
from pliant.store.read import ReadExtent, Store, aligned_buffer
from pliant.system import cpu_frequency, cpu_model, disk_name, waited_s

LENGTHS = (16, 32, 64, 128, 256)
_MIN_REPEATS, _MAX_REPEATS = 7, 60
_WORDS = (
    "the",
    "film",
    "is",
    "a",
    "charming",
    "and",
    "often",
    "affecting",
    "journey",
    ",",
    "but",
    "never",
    "dull",
)


@runtime_checkable
class ProfileSubject(Protocol):
    """A model whose steps can be run one by one, to be measured."""

    @property
    def store(self) -> Store: ...
    @property
    def spec(self) -> ModelSpec: ...
    def reserve(self, tokens: int, /) -> None: ...
    def hold(self, bits: np.ndarray, /) -> None: ...
    def embed(self, ids: np.ndarray, types: np.ndarray, /) -> None: ...
    def layer(self, layer: int, width: int, n_tokens: int, /) -> None: ...
    def head(self, n_tokens: int, /) -> object: ...


@dataclass(frozen=True, slots=True)
class ProfileProgress:
    """`done` of `total` equal parts of the measurement are finished."""

    done: int
    total: int


def measure_device(
    engine: ProfileSubject,
    *,
    n_threads: int,
    compute: str = "fp32",
    lengths: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
    seconds: float = 6.0,
    clock: Clock = time.perf_counter,
    waited: Callable[[], Mapping[int, float]] = waited_s,
    on_progress: Callable[[ProfileProgress], None] = lambda _: None,
) -> DeviceProfile:
    """Measure reads, layers (alone and during reads), tokenising, embedding and head: medians and p95.

    `lengths` default to LENGTHS up to the model's limit, and that limit; `widths` to the trained ones. Shards
    are held in their highest bitwidth below full fidelity, so layers decode during the run. Takes about
    `seconds`, and at least a few repeats of everything. Raises ProfileError for lengths and widths that the
    model does not have; StoreError if a read fails its check.
    """
    spec = engine.spec
    lengths = _lengths(spec, lengths)
    widths = _widths(spec, widths)
    engine.reserve(max(lengths))
    engine.hold(np.full((spec.n_layers, spec.n_heads), engine.store.manifest.most_planes, np.int64))
    bench = _ProfileSamples(engine, lengths, widths, clock)
    disturbed = bench.run(seconds, waited, on_progress)
    profile = _profile(engine, bench, lengths, widths, n_threads, subject_of(engine.store, compute))
    return replace(profile, disturbed=disturbed)


def profile_key(store: Store, n_threads: int, compute: str = "fp32") -> tuple[str, int, str, str]:
    """Return what a profile of `store` is found by, for `profile_path`: CPU and kernels, threads, model and
    disk.
    """
    isa, subject = host_isa(), subject_of(store, compute)
    cpu, disk = f"{cpu_model()} {isa.cpu}{isa.features}", f"{io_method(store)} {disk_name(store.path)}"
    return cpu, n_threads, subject, disk


def subject_of(store: Store, compute: str = "fp32") -> str:
    """Return the `subject` of profiles of `store`."""
    return subject_name(store.spec, compute, store.manifest.most_planes)


def subject_name(spec: ModelSpec, compute: str = "fp32", planes: int = PLANES) -> str:
    """Return the model shape that a profile is valid for: equal names run equally fast.

    `planes` are those that a layer decodes at most.
    """
    widths = ",".join(map(str, spec.widths))
    n_labels = len(spec.head.labels) if spec.head.labels else 0
    return (
        f"{spec.family} {spec.n_layers}x{spec.n_heads} d{spec.hidden} f{spec.ffn} e{spec.embedding} "
        f"v{spec.vocab} t{spec.max_tokens} w{widths} c{n_labels} {spec.activation} {spec.precision} "
        f"{compute} p{planes}"
    )


def io_method(store: Store) -> str:
    """Return how reads of `store` are kept cold, or that they are not."""
    if store.is_direct:
        return "O_DIRECT"
    return "page cache dropped before each read (fadvise); a file system in memory is never cold"


class _ProfileSamples:
    """All cells of a profile and their samples."""

    def __init__(
        self, engine: ProfileSubject, lengths: Sequence[int], widths: Sequence[int], clock: Clock
    ) -> None:
        self.clock = clock
        self._store = engine.store
        n_layers = engine.spec.n_layers
        part_runs = _read_sizes(engine.store)
        whole = _extents(engine.store, 0, max(part_runs.values(), key=lambda r: _bytes(engine.store, r)))
        self._buffer = aligned_buffer(sum(e.n_bytes for e in whole) + 8 * 4096)
        self.shards = {
            bits: TimedFunction(self._reading(runs)) for bits, runs in _shard_runs(engine.store).items()
        }
        self.reads = {n: TimedFunction(self._reading(runs)) for n, runs in part_runs.items()}
        self.load = TimedFunction(self._reading(part_runs[max(part_runs)]))
        tokenizer = open_tokenizer(engine.store.path, engine.spec)
        texts = {n: _text_of(tokenizer, n) for n in lengths}
        self.tokenise = {n: TimedFunction(lambda i, t=texts[n]: tokenizer.encode(t)) for n in lengths}  # type: ignore[misc]
        inputs = {n: _input(tokenizer, texts[n], n) for n in lengths}
        self.embed = {n: TimedFunction(lambda i, e=inputs[n]: engine.embed(e.ids, e.types)) for n in lengths}  # type: ignore[misc]
        self.head = {n: TimedFunction(lambda i, n=n: engine.head(n)) for n in lengths}  # type: ignore[misc]

        # Repeats visit the layers in turn, as in a run: each finds its weights equally far from the core, and
        # an interruption affects one layer, not each. Plans add up the layers' times, so a 95th percentile of
        # single layers would count every interruption once per layer.
        def cells() -> dict[tuple[int, int], TimedFunction]:
            return {
                (n, m): TimedFunction(
                    lambda i, n=n, m=m: engine.layer(i % n_layers, m, n),  # type: ignore[misc]
                    longest_chain=max(1, n_layers // 2),
                )
                for n in lengths
                for m in widths
            }

        self.alone, self.with_io = cells(), cells()
        self.reads_beside: list[float] = []

    @property
    def quiet(self) -> tuple[TimedFunction, ...]:
        groups = (self.shards, self.reads, self.tokenise, self.embed, self.head, self.alone)
        return (self.load, *(cell for group in groups for cell in group.values()))

    def run(
        self,
        seconds: float,
        waited: Callable[[], Mapping[int, float]],
        on_progress: Callable[[ProfileProgress], None],
    ) -> float:
        """Repeat each cell within its share of `seconds`; return the share of disturbed samples."""
        return time_in_rounds(
            self.quiet,
            seconds,
            least=_MIN_REPEATS,
            most=_MAX_REPEATS,
            beside=tuple(self.with_io.values()),
            load=self._reader,
            clock=self.clock,
            waited=waited,
            on_round=lambda done: on_progress(ProfileProgress(done, _MAX_REPEATS)),
        )

    def _reading(self, runs: tuple[SliceRun, ...]) -> Callable[[int], object]:
        """A function that reads `runs` of the i-th layer, so that no read finds the last one's data."""
        per_layer = [_extents(self._store, layer, runs) for layer in range(self._store.spec.n_layers)]
        return lambda i: [self._store.read_extent(e, self._buffer) for e in per_layer[i % len(per_layer)]]

    @contextmanager
    def _reader(self) -> Iterator[None]:
        """Read one layer after another on a thread from before the block until its end."""
        stop, began = Event(), Event()
        errors: list[Exception] = []

        def read() -> None:
            i = 0
            try:
                while not stop.is_set():
                    began.set()
                    took_s = self.load.sample(i, self.clock)
                    if not stop.is_set():
                        self.reads_beside.append(took_s)
                    i += 1
            except Exception as error:  # noqa: BLE001 - raised again by the caller's thread
                errors.append(error)
                began.set()

        thread = Thread(target=read, name="pliant-profile-io", daemon=True)
        thread.start()
        began.wait()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if errors:
            raise errors[0]


def _profile(
    engine: ProfileSubject,
    bench: _ProfileSamples,
    lengths: Sequence[int],
    widths: Sequence[int],
    n_threads: int,
    subject: str,
) -> DeviceProfile:
    store, frequency = engine.store, cpu_frequency()
    disk, disk_p95 = fit_disks({n: cell.samples_s for n, cell in bench.reads.items()})
    shards = _shard_runs(store)
    alone_s = max(float(np.median(bench.load.samples_s)), 1e-9)
    beside_s = float(np.median(bench.reads_beside)) if bench.reads_beside else alone_s
    return DeviceProfile(
        cpu=cpu_model(),
        n_threads=n_threads,
        memory_bytes=memory_bytes(),
        frequency_Hz=frequency.frequency_Hz,
        frequency_reason=frequency.reason,
        subject=subject,
        io_method=io_method(store),
        reads=tuple(
            ShardRead(bits, _bytes(store, shards[bits]), timing(cell.samples_s))
            for bits, cell in bench.shards.items()
        ),
        disk=disk,
        disk_p95=disk_p95,
        layers=tuple(
            LayerTime(n, m, timing(bench.alone[n, m].samples_s), timing(bench.with_io[n, m].samples_s))
            for n in lengths
            for m in widths
        ),
        overheads=tuple(
            Overhead(n, *(timing(group[n].samples_s) for group in (bench.tokenise, bench.embed, bench.head)))
            for n in lengths
        ),
        io_slowdown=max(1.0, beside_s / alone_s),
    )


def _lengths(spec: ModelSpec, asked: Sequence[int] | None) -> tuple[int, ...]:
    if asked is None:
        return (*(n for n in LENGTHS if n < spec.max_tokens), spec.max_tokens)
    wrong = [n for n in asked if not 1 <= n <= spec.max_tokens]
    if wrong or not asked:
        raise ProfileError(f"lengths {wrong} are not within 1..{spec.max_tokens}, what this model reads.")
    return tuple(sorted(set(asked)))


def _widths(spec: ModelSpec, asked: Sequence[int] | None) -> tuple[int, ...]:
    wrong = [m for m in asked or () if not 1 <= m <= spec.n_heads]
    if wrong:
        raise ProfileError(f"widths {wrong} are not within 1..{spec.n_heads}, the slices of this model.")
    return tuple(sorted(set(asked))) if asked else spec.widths


def _shard_runs(store: Store) -> dict[int, tuple[SliceRun, ...]]:
    """Return one shard in each bitwidth of the store, as runs of layer 0."""
    shards = {
        k: tuple(SliceRun(0, q, 0, 1) for q in range(k)) for k in range(1, store.manifest.most_planes + 1)
    }
    if FULL_BITS in store.manifest.bits:
        shards[FULL_BITS] = (SliceRun(0, FULL, 0, 1),)
    return shards


def _read_sizes(store: Store) -> dict[int, tuple[SliceRun, ...]]:
    """Return single reads of many sizes, {payload bytes: runs of layer 0}: slices of a plane, then planes."""
    M, planes = store.spec.n_heads, store.manifest.most_planes
    choices: list[tuple[SliceRun, ...]] = [
        (SliceRun(0, 0, 0, count),) for count in sorted({1, 2, 3, M // 2, M}) if 1 <= count <= M
    ]
    choices += [tuple(SliceRun(0, q, 0, M) for q in range(k)) for k in range(2, planes + 1)]
    if FULL_BITS in store.manifest.bits:
        choices += [(SliceRun(0, FULL, 0, count),) for count in sorted({1, max(1, M // 3)})]
    return {_bytes(store, runs): runs for runs in choices if len(_extents(store, 0, runs)) == 1}


def _bytes(store: Store, runs: Sequence[SliceRun]) -> int:
    return sum(store.run_bytes(run) for run in runs)


def _extents(store: Store, layer: int, runs: Sequence[SliceRun]) -> tuple[ReadExtent, ...]:
    return store.plan_reads([SliceRun(layer, run.part, run.first, run.count) for run in runs])


def _text_of(tokenizer: Tokenizer, n_tokens: int) -> str:
    """Return words with at most `n_tokens` tokens, as many as possible, and at least one word."""
    words = [_WORDS[0]]
    while len(words) < n_tokens:
        longer = [*words, _WORDS[len(words) % len(_WORDS)]]
        if len(tokenizer.inner.encode(" ".join(longer)).ids) > n_tokens:
            break
        words = longer
    return " ".join(words)


def _input(tokenizer: Tokenizer, text: str, n_tokens: int) -> TokenizedInput:
    """Return exactly `n_tokens` ids: those of `text`, repeated or cut."""
    try:
        encoded = tokenizer.encode(text)
        ids, types = encoded.ids, encoded.types
    except Exception as error:
        raise ProfileError(f"the store's tokenizer reads no plain English: {error}") from error
    return TokenizedInput(np.resize(ids, n_tokens), np.resize(types, n_tokens))
