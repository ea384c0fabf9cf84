"""Open a model by name under a latency target and a memory budget. Knows no plan, kernel or read.

What a user calls a model (a store, a model that ships with pliant, a directory, a hub id) becomes a store,
built once and kept in the cache; the device is profiled once for each model shape and kept there too.
"""

import os
import shutil
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

from pliant.compiler.executable.encoder_stages import arena_bytes
from pliant.errors import InputError, StoreError
from pliant.ir.cost import cost_table
from pliant.ir.device import DeviceProfile, Dilation, dilate
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.hf.hub import resolve
from pliant.models.spec import ModelSpec
from pliant.plan.result import Plan
from pliant.plan.submodel.baseline import load_and_execute, preload_model, standard_pipeline
from pliant.plan.submodel.plan_options import OURS, Depths, PlanOptions
from pliant.profile.machine import cpu_model
from pliant.profile.measure_device import ProfileProgress, io_method, measure_device, subject_name
from pliant.profile.profile_cache import load_profile, profile_path, save_profile
from pliant.quantities import parse_bytes, parse_seconds
from pliant.run.process_memory import MemoryBudget
from pliant.run.submodel.engine import Engine
from pliant.run.submodel.planning import MARGIN, planner_of
from pliant.run.submodel.session import Session, SessionOptions
from pliant.settings import cache_folder, thread_count
from pliant.store.build import Progress, build
from pliant.store.coding.quantize import Quantizer
from pliant.store.manifest import MANIFEST, AccuracyTable, put_accuracy, put_importance
from pliant.store.read import Store, open_store

Compute = Literal["fp32", "int8"]
Baseline = Literal["load-exec", "stdpl-2", "stdpl-6", "stdpl-32", "preload-6", "preload-32"]
# Called with what is being done, how much of it is done, and of how much.
OnProgress = Callable[[str, int, int], None]

# Importance of each shard, [layer][slice]; a model directory may hold it under this name.
Importance = tuple[tuple[float, ...], ...]
IMPORTANCE = "importance.json"
ACCURACY = "accuracy.json"  # what submodels were measured to answer, likewise

_ASSETS = Path(__file__).parents[1] / "models" / "assets"


def open(
    source: str | os.PathLike[str],
    *,
    latency: str | float,
    preload: str | int = 0,
    working: str | int | None = None,
    length: int = 64,
    threads: int | None = None,
    anytime: bool = True,
    best_effort: bool = False,
    compute: Compute = "fp32",
    profile: DeviceProfile | None = None,
    memory: MemoryBudget | None = None,
    dilation: Dilation = Dilation(),  # noqa: B008 - frozen
    plan: PlanOptions = OURS,
    depths: Depths | None = None,
    margin: float = MARGIN,
    io_reserve: float | None = None,
    adapt: bool = True,
    baseline: Baseline | None = None,
    quantizer: Quantizer | None = None,
    cache: Path | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> Session:
    """A session that answers text with `source` within `latency`, keeping `preload` bytes of weights.

    `source` is a store, the name of a model that ships with pliant ("sst2"), a Hugging Face model
    directory, or a hub id. `length` is the number of tokens planned for; inputs of any length are
    answered. Without `threads` and `cache`, settings.py decides. `profile` stands in for the kept or measured
    one, `dilation` makes the device slower, `memory` is shared with other sessions. Where the store holds
    measured accuracy, the submodel of the highest expected accuracy runs; `plan=PlanOptions(choose="size")`
    takes the largest instead, as the paper does. Layers are left out only of a model that was trained for it
    (`pliant stretch`) or whose accuracy without them was measured; `depths="any"` leaves them out of any
    model, and replies then say `cut` "untrained". `margin` is the fraction of the target kept for what no
    plan knows of. `working` bounds the memory that layers in flight are read into: bits are lowered until
    they fit. `io_reserve`: what a layer cannot run without is read in time even if reads take this many
    times their 95th percentile (at least 1; None learns it from their spread). The session plans for
    compute and reads as its latest answers took them, unless `adapt` is False. `baseline` runs as one of
    the systems STI is compared with. `quantizer` is how weights became codes (None: "lloyd", or whatever a
    store has); the paper's system is `plan=PAPER, anytime=False, margin=0.0, adapt=False,
    quantizer="equal-population"`. Raises PliantError: see errors.py for which.
    """
    options = SessionOptions(
        latency_s=parse_seconds(latency),
        preload_bytes=parse_bytes(preload),
        working_bytes=None if working is None else parse_bytes(working),
        length=length,
        n_threads=thread_count(threads),
        is_anytime=anytime,
        best_effort=best_effort,
        compute=compute,
        plan=replace(
            plan,
            depths=depths or plan.depths,
            io_reserve=plan.io_reserve if io_reserve is None else io_reserve,
        ),
        margin=margin,
        adapts=adapt,
    )
    cache = cache_folder(cache)
    store = open_source(source, cache, on_progress, quantizer)
    try:
        if profile is None:
            profile = profile_of(store, cache, options.n_threads, compute, on_progress)
        device = dilate(profile, dilation)
        fixed = None if baseline is None else plan_of(store, device, options, baseline)
        session = Session(store, device, options, cache=cache, memory=memory, fixed=fixed)
        try:
            session.warm_up()
        except BaseException:
            session.close()
            raise
    except BaseException:
        store.close()
        raise
    weakref.finalize(session, store.close)  # a session leaves its store open; this one has no other user
    return session


def plan_of(
    store: Store, profile: DeviceProfile, options: SessionOptions, baseline: Baseline | None = None
) -> Plan:
    """What a session of these options would plan, without reading or compiling anything.

    Raises BudgetError naming the nearest feasible target.
    """
    spec, planner = store.spec, planner_of(store.manifest, profile)
    length = planner.bucket(options.length)
    if baseline is None:
        n_bytes = arena_bytes(spec, spec.widths[-1], length, options.compute)
        return planner.resident(options, arena_bytes=n_bytes)[0]
    job = (planner.shape, cost_table(profile, length, "p95"), options.budget, planner.importance)
    settings, expected = options.planning, cost_table(profile, length, "median")
    grid = None if planner.accuracy is None else planner.accuracy.grid
    if baseline == "load-exec":
        made = load_and_execute(*job, settings, expected=expected, accuracy=grid)
        return replace(made, accuracy_interval=planner.interval(made.expected_accuracy))
    kind, _, bits = baseline.partition("-")
    system = standard_pipeline if kind == "stdpl" else preload_model
    made = system(*job, int(bits), settings, expected=expected, accuracy=grid)
    return replace(made, accuracy_interval=planner.interval(made.expected_accuracy))


def open_source(
    source: str | os.PathLike[str],
    cache: Path,
    on_progress: OnProgress = lambda what, done, total: None,
    quantizer: Quantizer | None = None,
) -> Store:
    """The store of `source`; anything but a store is packed into `cache` when it is first used.

    A packed store that has been damaged or cut is packed again. Raises ModelError and StoreError, the latter
    also for a store that another quantizer than `quantizer` made.
    """
    if is_store(Path(source)):
        return _checked(open_store(Path(source)), quantizer)
    directory, quantizer = model_directory(source), quantizer or "lloyd"
    name = _packed_name(directory)
    packed = cache / "stores" / (name if quantizer == "lloyd" else f"{name}-{quantizer}")
    if packed.exists():
        try:
            return open_store(packed)
        except StoreError:
            shutil.rmtree(packed, ignore_errors=True)

    def on_build(progress: Progress) -> None:
        on_progress(f"packing {directory.name}: {progress.what}", progress.done, progress.total)

    checkpoint = open_checkpoint(directory)
    importance, accuracy = measured_in(directory, checkpoint.spec)
    build(checkpoint, packed, quantizer, on_progress=on_build, overwrite=True)
    if importance is not None:
        put_importance(packed, importance)
    if accuracy is not None and quantizer == "lloyd":  # what was measured at other codes says nothing here
        put_accuracy(packed, accuracy)
    return open_store(packed)


def _checked(store: Store, quantizer: Quantizer | None) -> Store:
    made = store.manifest.quantizer
    if quantizer in (None, made):
        return store
    store.close()
    raise StoreError(
        f"{store.path} was packed with the quantizer {made}, not {quantizer}: name its model, or pack it "
        f"again with `pliant pack --quantizer {quantizer}`."
    )


def measured_in(directory: Path, spec: ModelSpec) -> tuple[Importance | None, AccuracyTable | None]:
    """Importance and accuracy that a model directory brings. Raises InputError where they do not fit."""
    importance, accuracy = directory / IMPORTANCE, directory / ACCURACY
    return (
        read_importance(importance, spec) if importance.is_file() else None,
        read_accuracy(accuracy, spec) if accuracy.is_file() else None,
    )


def read_importance(path: Path, spec: ModelSpec) -> Importance:
    """A table of importance as JSON: a row a layer, a number a shard. Raises InputError naming `path`."""
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=Importance)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is no table of importance ({error}): give JSON, a list of numbers a layer."
        ) from error
    if [len(row) for row in rows] != [spec.n_heads] * spec.n_layers:
        raise InputError(f"{path} needs {spec.n_layers} rows of {spec.n_heads} numbers, one a shard.")
    return rows


def read_accuracy(path: Path, spec: ModelSpec) -> AccuracyTable:
    """A table of accuracy as JSON, as the manifest holds it. Raises InputError naming `path`."""
    try:
        table = msgspec.json.decode(path.read_bytes(), type=AccuracyTable)
        table.check(spec)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, StoreError) as error:
        raise InputError(f"{path} is no table of accuracy of this model: {error}") from error
    return table


def is_store(path: Path) -> bool:
    """Whether `path` is a directory with a store's manifest."""
    return (path / MANIFEST).is_file()


def model_directory(source: str | os.PathLike[str]) -> Path:
    """The model directory that `source` names: a directory, a shipped model, or a hub id.

    Raises ModelError when there is none.
    """
    text = os.fspath(source)
    shipped = _ASSETS / text
    is_name = text == Path(text).name and (shipped / "config.json").is_file()
    if is_name and not (Path(text) / "config.json").is_file():
        return shipped
    return resolve(text)


def shipped_models() -> tuple[str, ...]:
    """Names of the models that come with pliant."""
    return tuple(sorted(path.parent.name for path in _ASSETS.glob("*/config.json")))


def profile_of(
    store: Store,
    cache: Path,
    n_threads: int,
    compute: Compute = "fp32",
    on_progress: OnProgress = lambda what, done, total: None,
    *,
    measuring: "Measuring | None" = None,
) -> DeviceProfile:
    """This device's profile for `store`'s shape: the kept one, or measured now (about 10 s) and kept.

    With `measuring` it is measured in any case.
    """
    path = profile_path(cache, cpu_model(), n_threads, subject_name(store.spec, compute), io_method(store))
    kept = None if measuring else load_profile(path)
    if kept is not None:
        return kept
    how = measuring or Measuring()

    def on_measure(progress: ProfileProgress) -> None:
        on_progress("profiling this device", progress.done, progress.total)

    with Engine(store, n_threads=n_threads, cache=cache, compute=compute) as engine:
        profile = measure_device(
            engine,
            n_threads=n_threads,
            compute=compute,
            lengths=how.lengths,
            widths=how.widths,
            seconds=how.seconds,
            on_progress=on_measure,
        )
    save_profile(path, profile)
    return profile


@dataclass(frozen=True, slots=True)
class Measuring:
    """What to measure: None for the default lengths and the trained widths; about how long to take."""

    lengths: tuple[int, ...] | None = None
    widths: tuple[int, ...] | None = None
    seconds: float = 6.0


def _packed_name(directory: Path) -> str:
    """A name that changes with the directory's content: sizes and times of its files are part of it."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    lines = [str(directory.resolve())]
    for path in files:
        about = path.stat()
        lines.append(f"{path.relative_to(directory)} {about.st_size} {about.st_mtime_ns}")
    return f"{directory.name}-{sha256(chr(10).join(lines).encode()).hexdigest()[:16]}"
