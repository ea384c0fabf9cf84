"""`compute="auto"` of a text encoder: choose the arithmetic together with depth, width and bits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pliant.arrays import Float64
from pliant.errors import BudgetError, InputError
from pliant.ir.device import DeviceProfile
from pliant.kernels.emit.isa import host_isa
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.models.tokenizer import TokenizedInput, open_tokenizer
from pliant.plan.plan import Plan
from pliant.plan.precision import PrecisionChoice, PrecisionForm, check_tolerance, choose_form
from pliant.plan.submodel.accuracy import accuracy_curves
from pliant.run.session.text_session import TextPair
from pliant.run.submodel.engine import Engine
from pliant.run.submodel.plans.submodel_planner import SessionOptions, planner_of
from pliant.store.read import Store

_DRAWN, _DRAWN_TOKENS, _LEAST_ID = 4, 32, 1000
"""Random inputs if no examples are given: their number, their tokens, and the lowest token id."""

PlanOf = Callable[[DeviceProfile, SessionOptions], Plan]


@dataclass(frozen=True, slots=True)
class _AnswerErrors:
    """Relative errors of whole answers at `bits`, by arithmetic; `coarser`: with a bit less, in float32."""

    errors: Mapping[ComputeDtype, float]
    coarser: float
    bits: int


def choose_elastic(
    store: Store,
    options: SessionOptions,
    profile_of: Callable[[ComputeDtype], DeviceProfile],
    plan_of: PlanOf,
    examples: Sequence[str | TextPair],
    tolerance: float,
    cache: Path,
) -> SessionOptions:
    """Return `options` with the fastest arithmetic within `tolerance` on this device, and the reason.

    Each arithmetic is planned by its own measured times, so a faster one may run more layers or bits in time.
    With `examples`, the error is the rms of the difference of answers at the most planes stored from
    float32's, divided by the rms of the answers. Without examples, the error is the loss of accuracy: the
    expected accuracy of the best plan by the store's grid, minus that of this plan. For this, the error of an
    arithmetic counts as the weight error that changes answers as much (calibrated by removing one plane, on
    random token ids). During the measurement all planes stored are in memory, whatever the limit in
    `options`.

    Raises InputError for a store without measured accuracy and no examples, BudgetError as planning does.
    """
    check_tolerance(tolerance)
    has_grid = store.manifest.accuracy is not None
    if not examples and not has_grid:
        raise InputError(
            f"{store.path.name} has no measured accuracy for compute='auto' to choose by: give "
            "examples=[text, ...], or name the arithmetic: 'fp32', 'bf16' or 'int8'."
        )
    known: list[ComputeDtype] = ["fp32", *(["bf16"] if host_isa().has_bf16 else []), "int8"]  # type: ignore[list-item]
    measured = _measure(store, known, _inputs(store, examples), options.n_threads, cache)
    plans: dict[ComputeDtype, Plan] = {}
    failed: BudgetError | None = None
    profiles = {compute: profile_of(compute) for compute in known}
    for compute, profile in profiles.items():
        try:
            plans[compute] = plan_of(profile, replace(options, compute=compute))
        except BudgetError as error:
            failed = error
    if not plans:
        assert failed is not None
        raise failed
    if examples:
        choice = _by_answers(plans, measured, tolerance, len(examples))
    else:
        choice = _by_accuracy(store, profiles, plans, measured, tolerance, options)
    return replace(options, compute=choice.chosen.compute, precision=choice)


def _by_answers(
    plans: Mapping[ComputeDtype, Plan], measured: _AnswerErrors, tolerance: float, n_examples: int
) -> PrecisionChoice:
    forms = [
        PrecisionForm(
            compute,
            error=measured.errors[compute],
            seconds=plan.latency_s,
            size=plan.n * plan.width * plan.fidelity,
            submodel=f"{plan.n}x{plan.width}",
        )
        for compute, plan in plans.items()
    ]
    inputs = f"{n_examples} example{'' if n_examples == 1 else 's'}"
    measure = f"rms of the difference from fp32 over rms of the answer at {measured.bits} bits, {inputs}"
    return choose_form([*forms, *_refused()], tolerance, measure)


def _refused() -> list[PrecisionForm]:
    """The forms that this CPU lacks."""
    if host_isa().has_bf16:
        return []
    return [PrecisionForm("bf16", refused=f"the row {host_isa().target} has no products of bfloat16")]


def _by_accuracy(
    store: Store,
    profiles: Mapping[ComputeDtype, DeviceProfile],
    plans: Mapping[ComputeDtype, Plan],
    measured: _AnswerErrors,
    tolerance: float,
    options: SessionOptions,
) -> PrecisionChoice:
    errors = options.planning.errors
    net: dict[ComputeDtype, float] = {}
    for compute, plan in plans.items():
        planner = planner_of(store.manifest, profiles[compute])
        assert planner.accuracy is not None
        known = accuracy_curves(planner.accuracy.grid, errors)
        exact = known.at(plan.n, plan.width, plan.fidelity)
        reached = errors[: measured.bits + 1]
        weight_error = to_weight_error(measured.errors[compute], measured.coarser, reached)
        lowered = known.at(plan.n, plan.width, plan.fidelity - weight_error)
        if plan.expected_accuracy is not None and exact is not None and lowered is not None:
            net[compute] = plan.expected_accuracy - (exact - lowered)
    if not net:
        raise InputError(
            f"{store.path.name} has no measured accuracy for the submodels that run in time: name the "
            "arithmetic, 'fp32', 'bf16' or 'int8', or give examples=[text, ...] in Python."
        )
    best = max(net.values())
    forms = [
        PrecisionForm(c, error=best - net[c], seconds=plan.latency_s, submodel=f"{plan.n}x{plan.width}")
        for c, plan in plans.items()
        if c in net
    ]
    return choose_form(
        [*forms, *_refused()], tolerance, f"accuracy below the best plan's, {best:.4f}, by the store's grid"
    )


def to_weight_error(error: float, coarser: float, errors: Sequence[float]) -> float:
    """Return the relative weight error, in terms of fidelity, that changes answers by `error`.

    `coarser` is the change of answers with one plane removed, `errors` are at 0 planes to all. Squared
    changes are proportional to squared weight errors if both are small.
    """
    return (errors[-2] - errors[-1]) * (error / coarser) ** 2 if coarser else 0.0


def _inputs(store: Store, examples: Sequence[str | TextPair]) -> list[TokenizedInput]:
    """Return the examples as token ids; without examples, random ids from a fixed seed."""
    spec = store.spec
    if examples:
        tokenizer = open_tokenizer(store.path, spec)
        return [tokenizer.encode(*([one] if isinstance(one, str) else one)) for one in examples]
    draw, n = np.random.default_rng(0), min(_DRAWN_TOKENS, spec.max_tokens)
    least = min(_LEAST_ID, spec.vocab // 2)
    ids = draw.integers(least, spec.vocab, (_DRAWN, n)).astype(np.int32)
    return [TokenizedInput(row, np.zeros(n, np.int32)) for row in ids]


def _measure(
    store: Store, known: Sequence[ComputeDtype], inputs: Sequence[TokenizedInput], n_threads: int, cache: Path
) -> _AnswerErrors:
    """Measure the error of the whole model's answers in each arithmetic, relative to float32."""
    most = max(len(text.ids) for text in inputs)

    def answers(compute: ComputeDtype, bits: int) -> Float64[np.ndarray, "texts numbers"]:
        spec = store.spec
        with Engine(store, n_threads=n_threads, cache=cache, tokens=most, compute=compute) as engine:
            engine.hold(np.full((spec.n_layers, spec.n_heads), bits))
            layers = tuple(range(spec.n_layers))
            return np.stack([engine.answer(text, layers, spec.n_heads) for text in inputs]).astype(np.float64)

    planes = store.manifest.most_planes
    wanted = answers("fp32", planes)
    size = float(np.sqrt(np.square(wanted).mean())) or 1.0

    def error(compute: ComputeDtype, bits: int) -> float:
        return float(np.sqrt(np.square(answers(compute, bits) - wanted).mean())) / size

    errors = {c: 0.0 if c == "fp32" else error(c, planes) for c in known}
    return _AnswerErrors(errors, error("fp32", planes - 1), planes)
