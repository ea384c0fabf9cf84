"""Compile a text model to a C library that runs without Python, with a plan for each latency target."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pliant.api.model import ElasticModel, RecurrentNetwork
from pliant.api.open_elastic import OnProgress, open_packed_store, profile_of
from pliant.compiler.aot.model.library import LibrarySizes
from pliant.compiler.aot.model.plan_source import LadderPlan
from pliant.compiler.aot.model.text_tables import TextTables, text_tables
from pliant.compiler.aot.model.write_elastic import ElasticLibrary, write_elastic
from pliant.compiler.aot.model.write_recurrent import write_recurrent
from pliant.compiler.executable.call import Target
from pliant.errors import InputError
from pliant.ir.device import DeviceProfile
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.models.tokenizer import open_tokenizer
from pliant.plan.plan import Plan
from pliant.profile.measure_device import subject_of
from pliant.profile.profile_cache import load_profile, unreadable_reason
from pliant.run.submodel.engine import runs_of
from pliant.run.submodel.plans.submodel_planner import SessionOptions, planner_of
from pliant.settings import cache_folder
from pliant.store.read import Store


@dataclass(frozen=True, slots=True)
class LibraryOptions:
    """Options of a library: `targets_s` increase, inputs have at most `length` tokens.

    Every target holds for all lengths; a recurrent model has no targets. `working_bytes` limits the memory
    for layers that are being read. `profile` is a file written by `pliant profile` on the target device, with
    this model, arithmetic and number of threads; without it, plans are made for this machine.
    """

    targets_s: tuple[float, ...]
    preload_bytes: int
    length: int
    target: Target
    compute: ComputeDtype = "fp32"
    working_bytes: int | None = None
    profile: Path | None = None

    def __post_init__(self) -> None:
        if list(self.targets_s) != sorted(set(self.targets_s)):
            raise InputError("latency targets must increase: give them in order, such as 10ms,20ms,50ms.")


@dataclass(frozen=True, slots=True)
class LibraryReport:
    """A written library: the bytes that it allocates when opened, its plans, and the length of each plan.

    `ids_only` is the reason why the library has no tokenizer; None if it has one.
    """

    output: Path
    library: Path | None
    reason: str
    sizes: LibrarySizes
    plans: tuple[Plan, ...]
    lengths: tuple[int, ...]
    is_own_profile: bool
    ids_only: str | None


def compile_elastic(
    model: ElasticModel,
    name: str,
    options: LibraryOptions,
    out: Path,
    on_progress: OnProgress = lambda what, done, total: None,
) -> LibraryReport:
    """Write an elastic model as the C library `name` into the directory `out`, completely or not at all.

    Raises BudgetError naming the nearest feasible target if a target cannot be met at `options.length`;
    InputError for a length that the model does not read, a profile that cannot be read or is of something
    else, and if `out` cannot be written; StoreError and ModelError as opening does.
    """
    if not options.targets_s:
        raise InputError(
            "an elastic model needs latency targets: give some, such as --latency 10ms,20ms,50ms."
        )
    with open_packed_store(model, cache_folder(), on_progress) as store:
        spec = store.spec
        if not 1 <= options.length <= spec.max_tokens:
            raise InputError(
                f"the model does not read inputs of {options.length} tokens; give 1 to {spec.max_tokens}."
            )
        profile = _profile(store, options, on_progress)
        planner = planner_of(store.manifest, profile)
        terms = SessionOptions(
            target_s=options.targets_s[0],
            preload_bytes=options.preload_bytes,
            working_bytes=options.working_bytes,
            length=options.length,
            n_threads=options.target.n_threads,
            compute=options.compute,
            adapts=False,
        )
        text = text_tables(open_tokenizer(store.path, spec))
        _, held = planner.plan_resident(terms)
        lengths = (*(n for n in planner.profile.lengths if n < options.length), options.length)
        each = tuple(n for n in lengths for _ in options.targets_s)
        plans = tuple(
            planner.plan(replace(terms, target_s=target_s), n, held=held, is_promised=True)
            for n, target_s in zip(each, options.targets_s * len(lengths), strict=True)
        )
        used = {layer for plan in plans for layer in plan.layers}
        held = np.where(np.isin(np.arange(len(held)), sorted(used))[:, None], held, 0)
        made = ElasticLibrary(
            name=name,
            store=store,
            plans=tuple(_ladder_plan(plan, n) for plan, n in zip(plans, each, strict=True)),
            held=held,
            preload=runs_of(held),
            most_tokens=options.length,
            target=options.target,
            compute=options.compute,
            text=None if isinstance(text, str) else text,
        )
        emitted = write_elastic(made, out)
    done = emitted.result
    return LibraryReport(
        out,
        done.library,
        done.reason,
        emitted.sizes,
        plans,
        each,
        options.profile is None,
        text if isinstance(text, str) else None,
    )


def compile_recurrent(
    model: RecurrentNetwork, name: str, options: LibraryOptions, out: Path
) -> LibraryReport:
    """Write a recurrent model as the C library `name` into `out`; it has one plan and no targets.

    Raises InputError for a length that the model does not read, and if `out` cannot be written; ModelError.
    """
    source = model.source
    if not 1 <= options.length <= source.spec.max_tokens:
        raise InputError(
            f"the model does not read inputs of {options.length} words; give 1 to {source.spec.max_tokens}."
        )
    text: TextTables | str = "its words are numbered by a hash"
    if model.path is not None:
        text = text_tables(open_tokenizer(model.path, source.spec))
    known = None if isinstance(text, str) else text
    emitted = write_recurrent(source, name, options.length, options.target, known, out)
    done = emitted.result
    why = text if isinstance(text, str) else None
    return LibraryReport(out, done.library, done.reason, emitted.sizes, (), (), True, why)


def _ladder_plan(plan: Plan, n_tokens: int) -> LadderPlan:
    return LadderPlan(
        target_s=plan.budget.target_s,
        n_tokens=n_tokens,
        predicted_s=plan.latency_p95_s,
        meets=plan.meets_target,
        layers=plan.layers,
        width=plan.width,
        n_slots=plan.n_slots,
        program=plan.program,
    )


def _profile(store: Store, options: LibraryOptions, on_progress: OnProgress) -> DeviceProfile:
    """Return the given profile of the target device, or this device's."""
    if options.profile is None:
        return profile_of(store, cache_folder(), options.target.n_threads, options.compute, on_progress)
    found = read_profile(options.profile)
    path, n_threads, subject = options.profile, options.target.n_threads, subject_of(store, options.compute)
    if found.n_threads != n_threads:
        raise InputError(
            f"the profile {path} is of {found.n_threads} threads, and the library of {n_threads}; give "
            f"--threads {found.n_threads}, or a profile made with pliant profile --threads {n_threads}."
        )
    if found.subject != subject:
        raise InputError(
            f"the profile {path} is of {found.subject}, and the library of {subject}; make one on the target "
            f"device with pliant profile of this model and --compute {options.compute}."
        )
    if options.length > (longest := found.lengths[-1]):
        raise InputError(
            f"the profile {path} has inputs of up to {longest} tokens, and the library of up to "
            f"{options.length}; give --length {longest}, or profile longer ones."
        )
    return found


def read_profile(path: Path) -> DeviceProfile:
    """Return the profile of a target device at `path`. Raises InputError with the reason if there is none."""
    found = load_profile(path)
    if found is None:
        why = unreadable_reason(path) or "there is no such file"
        raise InputError(f"the profile {path} is not used, {why}; make one with pliant profile.")
    return found
