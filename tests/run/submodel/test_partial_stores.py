"""Sessions on stores that hold only some bitwidths: plans ask for nothing else, answers are the model's."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pliant.api.open_elastic import plan_of
from pliant.errors import BudgetError, StoreError
from pliant.ir.bitwidths import FULL_BITS
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.tokenizer import open_tokenizer
from pliant.plan.plan import NO_TARGET_S
from pliant.plan.submodel.plan_options import PAPER, PlanOptions
from pliant.run.submodel.plans.submodel_planner import SessionOptions as AnyOptions
from pliant.store.build import build
from pliant.store.read import open_store
from tests.reference_model import run_model
from tests.run.conftest import ELASTIC, OpenElastic, paper_profile
from tests.run.submodel.stored_tensors import quantized
from tests.run.submodel.submodel_reference import Reference

TEXT = "the story was not good"
SessionOptions = partial(AnyOptions, adapts=False)  # a busy test machine must not change the plan
BITS = ((2,), (2, 4), (5,), (2, 32), (3, 6, 32), (1, 2, 3, 4, 5, 6))


@pytest.fixture(scope="module")
def packed(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`packed(bits)` is a store of ELASTIC with these bitwidths."""
    made: dict[tuple[int, ...], Path] = {}

    def pack(bits: tuple[int, ...]) -> Path:
        if bits not in made:
            checkpoint = open_checkpoint(tiny_model("bert", **ELASTIC))
            made[bits] = build(checkpoint, tmp_path_factory.mktemp("stores") / "store", bits=bits)
        return made[bits]

    return pack


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("preload_bytes", [0, 4000, 10**9])
def test_without_a_target_the_most_bits_stored_answer(
    bits: tuple[int, ...],
    preload_bytes: int,
    packed: Callable[..., Path],
    tiny_model: Callable[..., Path],
    elastic_session: OpenElastic,
) -> None:
    """Against an oracle in float64 that quantizes the checkpoint's weights itself."""
    path = packed(bits)
    with elastic_session(SessionOptions(NO_TARGET_S, preload_bytes, length=8), store=path) as session:
        reply = session(TEXT)
    assert set(np.ravel(reply.details.bits)) == {max(bits)}
    with open_store(path) as store:
        spec, encoded = store.spec, open_tokenizer(path, store.spec).encode(TEXT)
    checkpoint = open_checkpoint(tiny_model("bert", **ELASTIC))
    tensors = quantized(checkpoint, np.full((spec.n_layers, spec.n_heads), max(bits)))
    logits = run_model(spec, tensors, encoded.ids, encoded.types)
    shares = np.exp(logits - logits.max())
    assert reply.scores == pytest.approx(shares / shares.sum(), abs=1e-5)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    "how", [PlanOptions(), PlanOptions(preload="planes"), PlanOptions(allocate="exact"), PAPER]
)
def test_every_target_and_memory_limit_answers_with_stored_bits(
    bits: tuple[int, ...],
    how: PlanOptions,
    packed: Callable[..., Path],
    elastic_session: OpenElastic,
    kernel_cache: Path,
) -> None:
    """Short targets read some planes of some slices: no ladder of bits may lead past what is stored."""
    path, ran = packed(bits), set()
    with open_store(path) as store:
        reference = Reference(store, kernel_cache)
        for latency_s in (0.005, 0.012, 0.05):
            for limits in ({"preload_bytes": 3000}, {"preload_bytes": None, "memory_bytes": 480_000}):
                options = SessionOptions(latency_s, length=8, plan=how, best_effort=True, **limits)
                with elastic_session(options, store=path) as session:
                    reply = session(TEXT)
                expected = reference.scores(reference.encode(TEXT), reply)
                assert reply.scores == pytest.approx(expected, abs=1e-6)
                ran |= set(np.ravel(reply.details.planned_bits).tolist())
        reference.close()
    most = max(b for b in bits if b < FULL_BITS)
    assert ran <= {*range(2, most + 1), *(b for b in bits if b == FULL_BITS)}


@pytest.mark.parametrize("bits", [(2, 4), (2, 32)])
def test_more_time_is_never_worse(bits: tuple[int, ...], packed: Callable[..., Path]) -> None:
    """The promise of plans holds with a short ladder of bits too."""
    with open_store(packed(bits)) as store:
        options = SessionOptions(0.005, 3000, length=8, best_effort=True)
        plans = [
            plan_of(store, paper_profile(), replace(options, target_s=t))
            for t in np.geomspace(0.005, 0.1, 25).tolist()
        ]
    sizes = [(p.n * p.width, p.fidelity if p.n * p.width == 16 else 0.0) for p in plans]
    assert all(a <= (b[0], b[1] + 1e-12) for a, b in pairwise(sizes))


def test_a_store_of_one_bit_is_refused_with_the_next_move(
    packed: Callable[..., Path], elastic_session: OpenElastic
) -> None:
    """No submodel runs with one bit: what is stored and what is needed are said before any read."""
    with (
        pytest.raises(StoreError, match=r"offers 1,32 bits.*at least 2.*--bits 2"),
        elastic_session(SessionOptions(1.0), store=packed((1, 32))),
    ):
        pass


def test_a_baseline_of_bits_that_are_not_stored_is_refused(packed: Callable[..., Path]) -> None:
    """It would fail at its first read, after the model was opened."""
    with open_store(packed((2, 4))) as store:
        for baseline in ("load-exec", "stdpl-6", "preload-32"):
            with pytest.raises(BudgetError, match="the store offers 2, 3, 4"):
                plan_of(store, paper_profile(), SessionOptions(1.0), baseline)  # type: ignore[arg-type]
        assert plan_of(store, paper_profile(), SessionOptions(1.0), "stdpl-2").bits[0][0] == 2
