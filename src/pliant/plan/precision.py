"""Choose the arithmetic of a model's products: which form runs, its error, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Literal, get_args

from pliant.errors import InputError
from pliant.ir.bitwidths import BYTE_BITS, PLANES, WeightFormat
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.quantities import format_seconds

TOLERANCE = 0.01
"""The default maximum error of `compute="auto"`."""

ComputePrecision = Literal["fp32", "bf16", "int8", "auto"]
"""The requested arithmetic, or "auto" for the fastest within a tolerance."""


@dataclass(frozen=True, slots=True)
class PrecisionForm:
    """One way to compute a model's products, with its measured cost.

    `error` is in the unit of the choice's `measure`, relative to float32; `seconds` is the time of an answer.
    `size` is how much of the model runs in that time: a larger size is preferred to a faster form. `submodel`
    describes it. `refused` is the reason why a form cannot run.
    """

    compute: ComputeDtype
    weights: WeightFormat = "auto"
    error: float = inf
    seconds: float = inf
    size: float = 0.0
    submodel: str = ""
    refused: str = ""

    @property
    def label(self) -> str:
        """Its arithmetic, and the bits of its weights if they are uniform."""
        if isinstance(self.weights, str):
            return self.compute
        return f"{self.compute} from {self.weights} bit{'' if self.weights == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class PrecisionChoice:
    """The chosen form and the candidates; `measure` describes the error and the data it was measured on."""

    chosen: PrecisionForm
    forms: tuple[PrecisionForm, ...]
    tolerance: float
    measure: str

    @property
    def reasons(self) -> tuple[str, ...]:
        """The choice as sentences for a plan, one per form."""
        is_fastest = all(self.chosen.seconds <= form.seconds for form in self.forms if self._allows(form))
        what = "is the fastest form" if is_fastest else "runs most of the model in time, of the forms"
        first = (
            f"compute auto: {self.chosen.label} {what} within a tolerance of {self.tolerance:.3g} "
            f"({self.measure})"
        )
        return first, *(self._line(form) for form in self.forms)

    def _allows(self, form: PrecisionForm) -> bool:
        return not form.refused and form.error <= self.tolerance

    def _line(self, form: PrecisionForm) -> str:
        if form.refused:
            return f"{form.label}: {form.refused}"
        verdict = ""
        if not self._allows(form):
            verdict = ", above the tolerance"
        elif form.size < self.chosen.size:
            is_whole = form.submodel == self.chosen.submodel != ""
            verdict = (
                f", but {'fewer bits of its weights run' if is_whole else 'less of the model runs'} in time"
            )
        runs = f" of {form.submodel}" if form.submodel else ""
        return (
            f"{form.label}: error {form.error:.2g}, {format_seconds(form.seconds)} an answer{runs}{verdict}"
        )


def choose_form(forms: Sequence[PrecisionForm], tolerance: float, measure: str) -> PrecisionChoice:
    """Return the form with an error of at most `tolerance` that runs most of the model; then the fastest.

    Ties in speed go to the smaller error. Raises InputError if no form qualifies.
    """
    check_tolerance(tolerance)
    allowed = [form for form in forms if not form.refused and form.error <= tolerance]
    if not allowed:
        raise InputError(
            f"no form has an error of at most {tolerance:.3g} ({measure}): "
            f"{'; '.join(f'{form.label} {form.refused or form.error}' for form in forms)}. Raise tolerance."
        )
    chosen = min(allowed, key=lambda form: (-form.size, form.seconds, form.error))
    return PrecisionChoice(chosen, tuple(forms), tolerance, measure)


def check_compute(
    compute: ComputePrecision, examples: Sequence[object], weights: WeightFormat | None = None
) -> None:
    """Raise InputError for an unknown arithmetic, or for examples that are no list or would not be used.

    `weights` is None for a text encoder, which has no such option.
    """
    if compute not in get_args(ComputePrecision):
        raise InputError(f"compute is {compute!r}; give one of {', '.join(get_args(ComputePrecision))}.")
    if not isinstance(examples, Sequence) or isinstance(examples, str):
        raise InputError(
            f"examples must be a list of feeds, not a {type(examples).__name__}: give examples=[feeds, ...], "
            "also for a single one."
        )
    if examples and compute != "auto" and weights is None:
        raise InputError(
            f"examples of a text encoder are for compute='auto', not for compute={compute!r}: leave one out."
        )
    if examples and compute != "auto" and weights in ("fp32", BYTE_BITS):
        raise InputError(
            f"examples are for compute='auto', and for weights of 1 to {PLANES} bits or 'auto' of an ONNX "
            f"model, not for compute={compute!r} with weights={weights!r}: leave one out."
        )


def check_tolerance(tolerance: float) -> None:
    """Raise InputError for an invalid tolerance."""
    is_number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if not is_number or isnan(tolerance) or tolerance < 0:
        raise InputError(f"a tolerance of {tolerance!r} is not an error bound; give a number such as 0.01.")
