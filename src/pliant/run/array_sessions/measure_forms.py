"""Measure the error and time of each weight format of a graph's products against float32, on examples."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np

from pliant.errors import BudgetError, GraphError, InputError, PliantError
from pliant.ir.bitwidths import BYTE_BITS, PLANES, WeightFormat
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.plan.precision import PrecisionForm
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.session.feeds import FeedsLike

OpenForm = Callable[[WeightFormat, ComputeDtype], OnnxSession]
"""Opens a session with these weights and this arithmetic; "auto" weights use the memory that was granted."""

_ROUNDS = 9
_FEW_S = 0.02
"""A run shorter than this is timed repeatedly, at most as often as it fits into this time."""


def list_forms(weights: WeightFormat, *, is_bounded: bool) -> list[tuple[WeightFormat, ComputeDtype]]:
    """The forms to measure for the requested `weights`; if `is_bounded`, a memory limit sets their bits."""
    if weights == "fp32":
        return [("fp32", "fp32"), ("fp32", "bf16")]
    if weights == BYTE_BITS:
        return [(weights, "fp32"), (weights, "int8")]
    if weights != "auto":
        return [(weights, "fp32"), (weights, "bf16"), (weights, "int8")]
    if is_bounded:
        return [("auto", "fp32"), ("auto", "bf16"), ("auto", "int8")]
    coded: list[tuple[WeightFormat, ComputeDtype]] = [(PLANES, "fp32"), (PLANES, "bf16"), (PLANES, "int8")]
    return [("fp32", "fp32"), ("fp32", "bf16"), (BYTE_BITS, "int8"), *coded]


def measure_forms(
    forms: Sequence[tuple[WeightFormat, ComputeDtype]],
    reference: OnnxSession,
    open_form: OpenForm,
    examples: Sequence[FeedsLike],
    clock: Callable[[], float] = time.perf_counter,
) -> list[PrecisionForm]:
    """Error and time of each form on `examples`, measured interleaved with `reference`.

    The sessions of the forms are closed afterwards; two sessions are open at a time. A form that the
    processor, the memory or the model does not allow is reported as refused, with the reason.
    """
    wanted = [reference.run(feeds) for feeds in examples]
    found = []
    for weights, compute in forms:
        try:
            session = open_form(weights, compute)
        except (InputError, BudgetError, GraphError) as error:
            found.append(PrecisionForm(compute, weights, refused=_reason(error)))
            continue
        with session:
            try:
                found.append(_measure_form(session, compute, reference, (examples, wanted), clock))
            except (BudgetError, GraphError) as error:
                found.append(PrecisionForm(compute, weights, refused=_reason(error)))
    return found


def _reason(error: PliantError) -> str:
    """The first sentence of a message; the others are advice for callers who named the form."""
    return str(error).split(". ", 1)[0].removesuffix(".")


def _measure_form(
    session: OnnxSession,
    compute: ComputeDtype,
    reference: OnnxSession,
    data: tuple[Sequence[FeedsLike], Sequence[Mapping[str, np.ndarray]]],
    clock: Callable[[], float],
) -> PrecisionForm:
    examples, wanted = data
    answers = [session.run(feeds) for feeds in examples]
    error = max(answer_error(y, x) for y, x in zip(answers, wanted, strict=True))

    def seconds(one: OnnxSession) -> float:
        start = clock()
        for feeds in examples:
            one.run(feeds)
        return (clock() - start) / len(examples)

    first = seconds(reference)
    rounds = _ROUNDS * max(1, min(5, int(_FEW_S / max(first, 1e-6))))
    pairs = [(seconds(session), seconds(reference)) for _ in range(rounds)]
    ratio = median(own / its for own, its in pairs)
    return PrecisionForm(compute, session.weights, error, ratio * median(its for _, its in pairs))


def answer_error(answer: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> float:
    """The largest relative error over all outputs: the rms of the difference divided by the rms of `wanted`.

    For integer outputs it is the fraction of values that differ. It is inf where one value is finite and the
    other is not.
    """
    return max((_error(np.asarray(answer[name]), np.asarray(x)) for name, x in wanted.items()), default=0.0)


def _error(answer: np.ndarray, wanted: np.ndarray) -> float:
    if wanted.size == 0:
        return 0.0
    if wanted.dtype.kind not in "fV":
        return float(np.mean(answer != wanted))
    y, x = answer.astype(np.float64), wanted.astype(np.float64)
    is_finite = np.isfinite(x)
    if not np.array_equal(is_finite, np.isfinite(y)):
        return float("inf")
    y, x = y[is_finite], x[is_finite]
    if x.size == 0:
        return 0.0
    difference, size = np.sqrt(np.square(y - x).mean()), np.sqrt(np.square(x).mean())
    return float(difference / size) if size else float(difference)
