"""`compute="auto"`: of graphs on examples, of text encoders with their plans."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pliant
from pliant.api.choose_elastic import to_weight_error
from pliant.api.open_elastic import MeasurementOptions, profile_of
from pliant.errors import BudgetError, InputError
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.dilation import Dilation
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.plan.submodel.plan_options import OURS
from pliant.run.array_sessions.measure_forms import answer_error, list_forms
from pliant.run.process_memory import MemoryBudget
from pliant.store.build import build
from pliant.store.manifest import AccuracyEntry, AccuracyTable, put_accuracy
from pliant.store.read import open_store
from tests.rows import FORMS
from tests.run.test_coded_models import ids, model

__all__ = ["model"]

TEXTS = ["it is a good film", ("but the plot is bad", "it is not")]


def test_no_tolerance_leaves_float32(model: Path) -> None:
    """The other forms are measured nevertheless, and the plan says what they would cost."""
    session = pliant.compile(model, threads=1, compute="auto", examples=[ids(2, 7)], tolerance=0.0)
    exact = pliant.compile(model, threads=1)
    np.testing.assert_array_equal(session.run(ids(2, 7))["a2"], exact.run(ids(2, 7))["a2"])
    assert (session.compute, session.weights) == ("fp32", "fp32")
    found = {form.compute: form for form in session.precision.forms}
    assert list(found) == ["fp32", "bf16"]
    assert found["fp32"].error == 0.0
    if "bf16" in FORMS:
        assert 1e-4 < found["bf16"].error < 0.02
    else:
        refused = found["bf16"].refused
        assert "avx512-bf16" in refused
        assert "int8" not in refused  # the next move of compute="bf16" is none of "auto"
    for reason in session.precision.reasons:
        assert reason in str(session.plan)


@pytest.mark.parametrize("weights", ["fp32", 6, "auto"])
def test_what_was_chosen_runs(model: Path, weights: Any) -> None:
    """Whatever is fastest here: the session is that form, and its error is what was measured."""
    feeds = ids(2, 7)
    session = pliant.compile(
        model, threads=1, compute="auto", weights=weights, examples=[feeds], tolerance=0.5
    )
    chosen = session.precision.chosen
    assert (session.compute, session.weights) == (chosen.compute, chosen.weights)
    own = pliant.compile(model, threads=1, weights=6 if weights == 6 else "fp32")
    assert answer_error(session.run(feeds), own.run(feeds)) == pytest.approx(chosen.error)
    assert chosen.seconds == min(f.seconds for f in session.precision.forms if not f.refused)


def test_a_memory_limit_counts(model: Path) -> None:
    """The bits that fit are measured, and the chosen form keeps them."""
    whole = pliant.compile(model, threads=1)
    whole.run(ids(1, 3))
    limit = whole.memory.predicted_bytes - whole.weight_bytes // 2
    session = pliant.compile(
        model, threads=1, compute="auto", weights="auto", memory=limit, examples=[ids(1, 3)], tolerance=1.0
    )
    session.run(ids(1, 3))
    assert session.memory.predicted_bytes <= limit
    labels = {form.compute: form.weights for form in session.precision.forms if not form.refused}
    assert isinstance(labels["fp32"], int)
    assert isinstance(labels["int8"], int)


def test_examples_are_needed_and_refused_where_unused(model: Path) -> None:
    """There is nothing to compare without; floats and bytes with an arithmetic that is named ignore them."""
    with pytest.raises(InputError, match=r"give examples=\[feeds, ...\]"):
        pliant.compile(model, compute="auto")
    with pytest.raises(InputError, match=r"give examples=\[feeds, ...\]"):
        pliant.open(model, compute="auto")
    for verb in (pliant.compile, pliant.open):
        for options in ({}, {"weights": 8, "compute": "int8"}):
            with pytest.raises(InputError, match="examples are for compute='auto', and for weights"):
                verb(model, examples=[ids(1, 3)], **options)


def test_open_takes_the_same_words(model: Path) -> None:
    """One way to ask, whatever the model."""
    with pliant.open(model, threads=1, compute="auto", examples=[ids(1, 3)], tolerance=0.0) as session:
        assert session.compute == "fp32"
    with pliant.open(model, threads=1, compute="int8", weights=6) as session:
        assert session.compute == "int8"


def test_forms_follow_the_weights_that_were_asked_for() -> None:
    """int8 products take coded weights or bytes; bytes are not multiplied in bfloat16."""
    assert ("fp32", "int8") not in list_forms("fp32", is_bounded=False)
    assert {weights for weights, _ in list_forms(4, is_bounded=True)} == {4}
    assert list_forms(8, is_bounded=False) == [(8, "fp32"), (8, "int8")]
    assert (8, "int8") in list_forms("auto", is_bounded=False)
    assert {weights for weights, _ in list_forms("auto", is_bounded=True)} == {"auto"}


def test_the_error_of_an_answer() -> None:
    """The rms of the difference over that of the answer, the largest of all outputs; by hand."""
    wanted = {"a": np.array([3.0, 4.0], np.float32), "n": np.array([1, 2, 3, 4])}
    answer = {"a": np.array([3.0, 4.5], np.float32), "n": np.array([1, 2, 3, 4])}
    assert answer_error(answer, wanted) == pytest.approx(0.1)
    assert answer_error({**answer, "n": np.array([1, 2, 0, 0])}, wanted) == 0.5
    assert answer_error({**answer, "a": np.array([3.0, np.nan], np.float32)}, wanted) == float("inf")
    same = {"a": np.array([np.inf, 1.0], np.float32)}
    assert answer_error(same, same) == 0.0
    assert answer_error({"a": np.zeros(0, np.float32)}, {"a": np.zeros(0, np.float32)}) == 0.0


def test_an_error_counts_as_that_of_weights_which_change_answers_as_much() -> None:
    """One plane less is the measure; half its change is a quarter of its squared error."""
    errors = OURS.errors
    assert to_weight_error(0.04, 0.04, errors) == pytest.approx(errors[5] - errors[6])
    assert to_weight_error(0.02, 0.04, errors) == pytest.approx((errors[5] - errors[6]) / 4)
    assert to_weight_error(0.0, 0.0, errors) == 0.0


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels and profiles."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def store(tiny_model: Callable[..., Path], kept: Path, tmp_path: Path) -> Path:
    """A store whose profiles are measured in no time, and kept."""
    path = build(open_checkpoint(tiny_model("bert", True)), tmp_path / "store")
    with open_store(path) as opened:
        for compute in FORMS:
            profile_of(opened, kept, 1, compute, measurement=MeasurementOptions((8, 16), None, 0.05))
    return path


def test_a_text_encoder_s_plan_says_what_was_chosen(store: Path, kept: Path) -> None:
    """By the answers to examples, all of this CPU's forms measured."""
    with pliant.open(store, threads=1, cache=kept, compute="auto", examples=TEXTS, tolerance=0.5) as session:
        choice = session.options.precision
        assert session.options.compute == choice.chosen.compute
        errors = {form.compute: form.error for form in choice.forms if not form.refused}
        assert list(errors) == list(FORMS)
        assert {form.compute for form in choice.forms} == {"fp32", "bf16", "int8"}
        assert errors["fp32"] == 0.0 < errors["int8"]
        assert "2 examples" in choice.reasons[0]
        for plan in (session.plan, session.explain(8)):
            assert plan.reasons[: len(choice.reasons)] == choice.reasons
            assert choice.reasons[0] in str(plan)
    with pliant.open(store, threads=1, cache=kept, compute="auto", examples=TEXTS, tolerance=0.0) as session:
        assert session.options.compute == "fp32"


def test_without_examples_the_store_s_accuracy_decides(store: Path, kept: Path) -> None:
    """What a form loses is told by how accuracy falls with bits; no tolerance leaves the most accurate."""
    with open_store(store) as opened:
        spec = opened.spec
        entries = tuple(
            AccuracyEntry(n, m, bits, 0.5 + 0.002 * min(bits, 7) * (n + m / 4), -1.0 + 0.01 * bits)
            for n in range(1, spec.n_layers + 1)
            for m in spec.widths
            for bits in (2, 3, 4, 5, 6, FULL_BITS)
        )
    put_accuracy(store, AccuracyTable(500, entries))
    with pliant.open(store, threads=1, cache=kept, compute="auto", tolerance=1.0) as session:
        choice = session.options.precision
        assert "by the store's grid" in choice.reasons[0]
        found = {form.compute: form for form in choice.forms}
        assert found["fp32"].error == 0.0
        assert 0.0 <= found["int8"].error < 0.1
        assert choice.chosen.seconds == min(form.seconds for form in choice.forms)


def test_a_shared_budget_is_planned_with_as_memory_of_its_own_is(store: Path, kept: Path) -> None:
    """A disk too slow to read anything in time leaves what is preloaded, and the budget decides how much."""
    n_bytes = 2_000_000

    def plans(memory: int | MemoryBudget) -> list[tuple[str, float, float | None, str]]:
        with pliant.open(
            store,
            threads=1,
            cache=kept,
            compute="auto",
            examples=TEXTS,
            latency="100ms",
            memory=memory,
            dilation=Dilation(io=1e6),
        ) as session:
            forms = session.options.precision.forms
            return [(form.compute, form.seconds, form.size, form.submodel) for form in forms]

    assert plans(MemoryBudget(n_bytes)) == plans(n_bytes)


def test_a_shared_budget_that_is_too_small_names_what_the_model_needs(store: Path, kept: Path) -> None:
    """A node evicts other models by the number of missing bytes."""
    budget = MemoryBudget(2_000_000)
    other = np.empty(0)
    budget.reserve_fixed(other, 1_990_000)
    with pytest.raises(BudgetError, match="share 10000 bytes") as failure:
        pliant.open(store, threads=1, cache=kept, compute="auto", examples=TEXTS, memory=budget)
    assert failure.value.short_bytes is not None


def test_a_profile_of_one_arithmetic_does_not_go_with_auto(store: Path, kept: Path) -> None:
    """It has no times of the others."""
    with open_store(store) as opened:
        profile = replace(profile_of(opened, kept, 1))
    with pytest.raises(InputError, match="profile= has the times of one arithmetic"):
        pliant.open(store, threads=1, cache=kept, compute="auto", examples=TEXTS, profile=profile)
