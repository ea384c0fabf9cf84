"""The choice among arithmetics: within the tolerance, then most of the model, then fastest."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import InputError
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.plan.precision import ComputePrecision, PrecisionForm, choose_form

FORMS = st.lists(
    st.builds(
        PrecisionForm,
        compute=st.sampled_from(get_args(ComputeDtype)),
        weights=st.sampled_from(["fp32", 2, 6]),
        error=st.sampled_from([0.0, 0.001, 0.01, 0.3, float("inf"), float("nan")]),
        seconds=st.floats(1e-6, 1.0),
        size=st.sampled_from([0.0, 1.0, 2.0]),
        refused=st.sampled_from(["", "", "", "this processor lacks it"]),
    ),
    min_size=1,
    max_size=8,
)


@given(forms=FORMS, tolerance=st.sampled_from([0.0, 0.001, 0.02, 1.0]))
def test_no_form_within_the_tolerance_is_better_than_the_chosen_one(
    forms: list[PrecisionForm], tolerance: float
) -> None:
    """By definition, over all forms; a form that is refused or not a number is none."""
    allowed = [form for form in forms if not form.refused and form.error <= tolerance]
    if not allowed:
        with pytest.raises(InputError, match="no form has an error of at most"):
            choose_form(forms, tolerance, "a measure")
        return
    choice = choose_form(forms, tolerance, "a measure")
    chosen = choice.chosen
    assert chosen in allowed
    assert chosen.size == max(form.size for form in allowed)
    assert chosen.seconds == min(form.seconds for form in allowed if form.size == chosen.size)
    assert choice.forms == tuple(forms)
    first, *rest = choice.reasons
    assert chosen.label in first
    assert "a measure" in first
    assert len(rest) == len(forms)


def test_every_form_says_what_it_costs_or_why_it_cannot_run() -> None:
    """A person sees at a glance what a larger tolerance would give."""
    forms = (
        PrecisionForm("fp32", error=0.0, seconds=0.02, size=2.0, submodel="6x12"),
        PrecisionForm("bf16", refused="this processor lacks it"),
        PrecisionForm("int8", 6, error=0.03, seconds=0.004),
        PrecisionForm("int8", 1, error=0.0, seconds=0.004),
        PrecisionForm("int8", 5, error=0.0, seconds=0.01, size=1.9, submodel="6x12"),
    )
    assert choose_form(forms, 0.01, "m").reasons == (
        "compute auto: fp32 runs most of the model in time, of the forms within a tolerance of 0.01 (m)",
        "fp32: error 0, 20 ms an answer of 6x12",
        "bf16: this processor lacks it",
        "int8 from 6 bits: error 0.03, 4 ms an answer, above the tolerance",
        "int8 from 1 bit: error 0, 4 ms an answer, but less of the model runs in time",
        "int8 from 5 bits: error 0, 10 ms an answer of 6x12, but fewer bits of its weights run in time",
    )
    (first, *_) = choose_form(forms[1:4], 0.01, "m").reasons
    assert first == "compute auto: int8 from 1 bit is the fastest form within a tolerance of 0.01 (m)"


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), "1%", True, None])
def test_a_tolerance_that_is_no_error_is_refused(tolerance: Any) -> None:
    """The message names the value and an example."""
    with pytest.raises(InputError, match="is not an error bound; give a number such as"):
        choose_form([PrecisionForm("fp32", error=0.0)], tolerance, "m")


def test_what_can_be_asked_for_is_what_can_run_and_auto() -> None:
    """Two types say it, one for users and one for kernels."""
    assert get_args(ComputePrecision) == (*get_args(ComputeDtype), "auto")
