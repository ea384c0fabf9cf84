"""Open a text encoder under a latency target and a memory budget.

A model is packed into a store once, and the device is profiled once for each model shape; both are kept in
the cache.
"""

import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

from pliant.api.choose_elastic import choose_elastic
from pliant.api.model import ElasticModel, StoreModel
from pliant.errors import BudgetError, InputError, StoreError
from pliant.ir.cost import cost_table
from pliant.ir.device import MAX_DISTURBED, DeviceProfile, emulate
from pliant.ir.dilation import Dilation
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.spec import ModelSpec
from pliant.plan.plan import Plan
from pliant.plan.precision import TOLERANCE
from pliant.plan.submodel.baseline import load_and_execute, preload_model, standard_pipeline
from pliant.profile.measure_device import ProfileProgress, measure_device, profile_key
from pliant.profile.profile_cache import (
    interpolate_profile,
    load_profile,
    profile_path,
    save_profile,
    unreadable_reason,
)
from pliant.run.process_memory import MemoryBudget
from pliant.run.session.text_session import TextPair
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.engine import Engine
from pliant.run.submodel.plans.memory_split import memory_overhead, split_memory
from pliant.run.submodel.plans.submodel_planner import SessionOptions, SubmodelPlanner, planner_of
from pliant.run.submodel.submodel_memory import check_limit
from pliant.settings import cache_folder
from pliant.store.build import BuildProgress, build
from pliant.store.coding.quantize import Quantizer
from pliant.store.file_lock import lock_file
from pliant.store.manifest import AccuracyTable
from pliant.store.read import Store, open_store
from pliant.system import cpu_pressure, frequency_limit

BaselineName = Literal["load-exec", "stdpl-2", "stdpl-6", "stdpl-32", "preload-6", "preload-32"]
# Called with what is being done, how much of it is done, and of how much.
OnProgress = Callable[[str, int, int], None]

# Importance of each shard, [layer][slice]; a model directory may hold it under this name.
Importance = tuple[tuple[float, ...], ...]
IMPORTANCE = "importance.json"
ACCURACY = "accuracy.json"  # what submodels were measured to answer, likewise

_QUIET = 0.05
"""Fraction of ten seconds in which a process of this machine waited for a core."""
_AGAIN_S = 600.0
"""Minimum age before a disturbed profile is measured again, because the other processes may be permanent."""


@dataclass(frozen=True, slots=True)
class PrecisionOptions:
    """Options of `compute="auto"`: texts or pairs (none: the store's accuracy grid), and accepted error."""

    examples: tuple[str | TextPair, ...] = ()
    tolerance: float = TOLERANCE


def open_elastic(
    model: ElasticModel,
    options: SessionOptions,
    *,
    profile: DeviceProfile | None = None,
    memory: MemoryBudget | None = None,
    dilation: Dilation = Dilation(),  # noqa: B008 - frozen
    baseline: BaselineName | None = None,
    quantizer: Quantizer | None = None,
    cache: Path | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
    precision_options: PrecisionOptions | None = None,
) -> ElasticSession:
    """Open a warm session of `options` on `model`; arguments are those of `pliant.open`.

    With `precision_options`, the chosen arithmetic replaces `options.compute`.
    """
    cache = cache_folder(cache)
    store = open_packed_store(model, cache, on_progress, quantizer)
    try:
        if precision_options is not None:
            shared = memory if baseline is None else None
            options = choose_options(
                store, options, precision_options, cache, on_progress, dilation, profile, shared
            )
        if profile is None:
            profile = profile_of(store, cache, options.n_threads, options.compute, on_progress)
        device = emulate(profile, dilation)
        fixed = None if baseline is None else plan_of(store, device, options, baseline)
        session = ElasticSession(
            store,
            device,
            options,
            name=model.name,
            identity=model.identity,
            cache=cache,
            memory=memory,
            fixed=fixed,
        )
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


def choose_options(
    store: Store,
    options: SessionOptions,
    precision_options: PrecisionOptions,
    cache: Path,
    on_progress: OnProgress = lambda what, done, total: None,
    dilation: Dilation = Dilation(),  # noqa: B008 - frozen
    profile: DeviceProfile | None = None,
    memory: MemoryBudget | None = None,
) -> SessionOptions:
    """Return `options` with the chosen arithmetic (see `choose_elastic`); profiles if needed.

    A session that takes part in the division of `memory` is planned with all that it can get of it, or if
    that is too little, with all of it: the division then names what each model needs.
    """
    if profile is not None:
        raise InputError(
            "profile= has the times of one arithmetic, but compute='auto' compares several: leave one out."
        )

    def profile_in(compute: ComputeDtype) -> DeviceProfile:
        return emulate(profile_of(store, cache, options.n_threads, compute, on_progress), dilation)

    def choose(terms: SessionOptions) -> SessionOptions:
        return choose_elastic(
            store,
            terms,
            profile_in,
            partial(plan_of, store),
            precision_options.examples,
            precision_options.tolerance,
            cache,
        )

    if memory is None or options.preload_bytes is not None:
        return choose(options)
    try:
        chosen = choose(replace(options, memory_bytes=memory.room_for(store)))
    except (BudgetError, InputError):  # InputError: a given working buffer alone is more
        chosen = choose(replace(options, memory_bytes=memory.total_bytes))
    return replace(options, compute=chosen.compute, precision=chosen.precision)


def plan_of(
    store: Store, profile: DeviceProfile, options: SessionOptions, baseline: BaselineName | None = None
) -> Plan:
    """Return the plan of a session with these options, without reading weights or compiling.

    Raises BudgetError naming the nearest feasible target, or the memory that a baseline exceeds.
    """
    planner = planner_of(store.manifest, profile)
    overhead = memory_overhead(store, options.compute, min(options.length, store.spec.max_tokens))
    sizes = {"arena_bytes": overhead.arena_bytes, "fixed_bytes": overhead.fixed_bytes}
    if baseline is None:
        terms = split_memory(planner, options, overhead)
        return planner.plan_resident(terms, **sizes)[0]
    made = _baseline_plan(planner, options, baseline)
    memory, most = replace(made.memory, **sizes), options.working_bytes
    if most is not None and memory.working_bytes > most:
        raise BudgetError(
            f"this baseline reads into a working buffer of {memory.working_bytes} bytes, but at most {most} "
            f"are allowed: give at least {memory.working_bytes}, or leave the limit out."
        )
    check_limit(memory, options.memory_bytes)
    return replace(made, memory=memory, accuracy_interval=planner.interval(made.expected_accuracy))


def _baseline_plan(planner: SubmodelPlanner, options: SessionOptions, baseline: BaselineName) -> Plan:
    """Return the plan of a baseline, without activations and the weights that every plan needs."""
    length, profile = planner.bucket(options.length), planner.profile
    job = (planner.shape, cost_table(profile, length, "p95"), options.budget, planner.importance)
    settings, expected = options.planning, cost_table(profile, length, "median")
    grid = None if planner.accuracy is None else planner.accuracy.grid
    if baseline == "load-exec":
        return load_and_execute(*job, settings, expected=expected, accuracy=grid)
    kind, _, bits = baseline.partition("-")
    system = standard_pipeline if kind == "stdpl" else preload_model
    return system(*job, int(bits), settings, expected=expected, accuracy=grid)


def open_packed_store(
    model: ElasticModel,
    cache: Path,
    on_progress: OnProgress = lambda what, done, total: None,
    quantizer: Quantizer | None = None,
) -> Store:
    """Open the store of `model`; a model that is not a store is packed into `cache` on first use.

    A damaged or truncated store in the cache is packed again. Raises ModelError and StoreError, the latter
    also for a store of another quantizer than `quantizer`.
    """
    if isinstance(model, StoreModel):
        return _checked(open_store(model.path), quantizer)
    directory, quantizer = model.path, quantizer or "lloyd"
    name = _packed_name(directory)
    packed = cache / "stores" / (name if quantizer == "lloyd" else f"{name}-{quantizer}")
    store = _open_whole(packed)
    if store is not None:
        return store

    def on_build(progress: BuildProgress) -> None:
        on_progress(f"packing {directory.name}: {progress.what}", progress.done, progress.total)

    checkpoint = open_checkpoint(directory)
    importance, accuracy = read_measurements(directory, checkpoint.spec)
    if quantizer != "lloyd":  # what was measured at other codes says nothing here
        accuracy = None
    with _packing(packed):
        store = _open_whole(packed)  # another thread or process may have packed it meanwhile
        if store is not None:
            return store
        shutil.rmtree(packed, ignore_errors=True)
        build(
            checkpoint,
            packed,
            quantizer,
            importance=importance,
            accuracy=accuracy,
            on_progress=on_build,
            overwrite=True,
        )
        return open_store(packed)


def _open_whole(packed: Path) -> Store | None:
    """Open the store at `packed`; None if there is none, or a damaged one."""
    try:
        return open_store(packed)
    except StoreError:
        return None


@contextmanager
def _packing(packed: Path) -> Iterator[None]:
    """Let one thread of all processes pack the store `packed`. Raises StoreError."""
    try:
        with lock_file(packed.with_name(f".{packed.name}.lock")):
            yield
    except OSError as error:
        raise StoreError(
            f"the store {packed} could not be written ({error.strerror or error}); choose another place "
            "(PLIANT_CACHE moves the cache)."
        ) from error


def _checked(store: Store, quantizer: Quantizer | None) -> Store:
    made = store.manifest.quantizer
    if quantizer in (None, made):
        return store
    store.close()
    raise StoreError(
        f"{store.path} was packed with the quantizer {made}, not {quantizer}: name its model, or pack it "
        f"again with `pliant pack --quantizer {quantizer}`."
    )


def read_measurements(directory: Path, spec: ModelSpec) -> tuple[Importance | None, AccuracyTable | None]:
    """Return importance and accuracy from a model directory. Raises InputError if they do not fit."""
    importance, accuracy = directory / IMPORTANCE, directory / ACCURACY
    return (
        read_importance(importance, spec) if importance.is_file() else None,
        read_accuracy(accuracy, spec) if accuracy.is_file() else None,
    )


def read_importance(path: Path, spec: ModelSpec) -> Importance:
    """Read importance from JSON: one row a layer, one number a shard. Raises InputError naming `path`."""
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=Importance)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not a table of importance ({error}): give JSON, a list of numbers for each layer."
        ) from error
    if [len(row) for row in rows] != [spec.n_heads] * spec.n_layers:
        raise InputError(f"{path} needs {spec.n_layers} rows of {spec.n_heads} numbers, one for each shard.")
    return rows


def read_accuracy(path: Path, spec: ModelSpec) -> AccuracyTable:
    """Read accuracy from JSON, in the format of the manifest. Raises InputError naming `path`."""
    try:
        table = msgspec.json.decode(path.read_bytes(), type=AccuracyTable)
        table.check(spec)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, StoreError) as error:
        raise InputError(f"{path} is not a table of accuracy of this model: {error}") from error
    return table


def profile_of(
    store: Store,
    cache: Path,
    n_threads: int,
    compute: ComputeDtype = "fp32",
    on_progress: OnProgress = lambda what, done, total: None,
    *,
    measurement: "MeasurementOptions | None" = None,
) -> DeviceProfile:
    """Return this device's profile for `store`'s shape: from the cache, or measured now (about 10 s).

    A profile that was measured on a busy machine is measured again when the machine is quiet. If the system
    reports its maximum clock rate, the profile is that of this rate, or is interpolated between cached ones
    of other rates. With `measurement` it is always measured. `on_progress` receives the reason if a cached
    profile is not used.
    """
    now_Hz = frequency_limit()
    about = profile_key(store, n_threads, compute)
    path = profile_path(cache, *about, now_Hz)
    kept = None if measurement else load_profile(path)
    is_stale = kept is not None and kept.disturbed > MAX_DISTURBED and _can_be_better(path)
    if is_stale:
        kept = None
    if kept is None and measurement is None and now_Hz is not None and not is_stale:
        kept = interpolate_profile(path, now_Hz)
    if kept is not None:
        return kept
    how, why = measurement or MeasurementOptions(), None if measurement else unreadable_reason(path)
    if is_stale:
        why = "it was measured while other processes used the cores"
    what = "profiling this device" + (f": the kept profile is not used, {why}" if why else "")

    def on_measure(progress: ProfileProgress) -> None:
        on_progress(what, progress.done, progress.total)

    with Engine(store, n_threads=n_threads, cache=cache, compute=compute) as engine:
        profile = measure_device(
            engine,
            n_threads=n_threads,
            compute=compute,
            lengths=how.lengths and (*how.lengths, store.spec.max_tokens),
            widths=how.widths,
            seconds=how.seconds,
            on_progress=on_measure,
        )
    save_profile(profile_path(cache, *about, frequency_limit()), profile)  # it may have changed meanwhile
    return profile


def _can_be_better(path: Path) -> bool:
    """Return whether the machine is quiet now and the profile at `path` is old enough to be replaced."""
    pressure = cpu_pressure()
    return pressure is not None and pressure < _QUIET and time.time() - path.stat().st_mtime > _AGAIN_S


@dataclass(frozen=True, slots=True)
class MeasurementOptions:
    """Options of a measurement: None for the default lengths and the trained widths; approximate seconds.

    The longest input of the model is measured with any `lengths`: inputs longer than all measured ones would
    be planned as if they were as long as the longest of these.
    """

    lengths: tuple[int, ...] | None = None
    widths: tuple[int, ...] | None = None
    seconds: float = 6.0


def _packed_name(directory: Path) -> str:
    """Return a name that includes a hash of the sizes and times of the directory's files."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    lines = [str(directory.resolve())]
    for path in files:
        about = path.stat()
        lines.append(f"{path.relative_to(directory)} {about.st_size} {about.st_mtime_ns}")
    return f"{directory.name}-{sha256(chr(10).join(lines).encode()).hexdigest()[:16]}"
