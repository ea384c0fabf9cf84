"""The engine against a float64 model that shares no code with it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from pliant.kernels.runtime.buffer import Buffer
from pliant.models.hf.checkpoint import Checkpoint, open_checkpoint
from pliant.models.spec import Head, picked_layers
from pliant.models.tokenizer import TokenizedInput
from pliant.run.submodel.engine import Engine, runs_of
from pliant.store.read import open_store
from tests.reference_model import run_model
from tests.rows import FORMS
from tests.run.submodel.stored_tensors import quantized, tensors_of
from tests.tiny import FAMILIES, random_ids

# float32 against float64 through two layers of norm-1 activations: a few hundred roundings of 6e-8.
TOLERANCE = 1e-4


def _encoded(checkpoint: Checkpoint, n_tokens: int) -> TokenizedInput:
    return TokenizedInput(*random_ids(checkpoint.spec, n_tokens))


@pytest.mark.parametrize("is_classifier", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_full_fidelity_answers_as_the_model_itself(
    family: str,
    is_classifier: bool,
    tiny_model: Callable[..., Path],
    tiny_store: Callable[..., Path],
    kernel_cache: Path,
) -> None:
    """Every family, both heads, one token to the limit: the promise of `models`."""
    checkpoint = open_checkpoint(tiny_model(family, is_classifier))
    spec = checkpoint.spec
    layers = picked_layers(spec.n_layers, spec.n_layers)
    with open_store(tiny_store(family, is_classifier)) as store, Engine(store, cache=kernel_cache) as engine:
        engine.hold(np.full((spec.n_layers, spec.n_heads), 32))
        for n_tokens in (1, 2, 7, spec.max_tokens):
            encoded = _encoded(checkpoint, n_tokens)
            expected = run_model(spec, tensors_of(checkpoint), encoded.ids, encoded.types)
            measured = engine.answer(encoded, layers, spec.n_heads)
            np.testing.assert_allclose(measured, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("isa", [to_portable(AVX512), AVX2, X86_64], ids=lambda isa: isa.name)
def test_mixed_bits_answer_as_the_quantized_weights_would(
    isa: Isa, tiny_model: Callable[..., Path], tiny_store: Callable[..., Path], kernel_cache: Path
) -> None:
    """Decoding in flight must change nothing but the weights, on every instruction set."""
    checkpoint = open_checkpoint(tiny_model())
    spec = checkpoint.spec
    bits = np.array([[1, 2, 3, 4], [5, 6, 32, 2]])
    encoded = _encoded(checkpoint, 9)
    with open_store(tiny_store()) as store, Engine(store, cache=kernel_cache, isa=isa) as engine:
        engine.hold(bits)
        for n, m in ((2, 4), (2, 3), (1, 2)):
            expected = run_model(spec, quantized(checkpoint, bits), encoded.ids, encoded.types, n, m)
            measured = engine.answer(encoded, picked_layers(spec.n_layers, n), m)
            np.testing.assert_allclose(measured, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_slices_beyond_the_end_of_memory_are_refused(
    tiny_store: Callable[..., Path], kernel_cache: Path
) -> None:
    """A kernel would read what lies behind; a shard of another width than was read says so here."""
    with open_store(tiny_store()) as store, Engine(store, cache=kernel_cache) as engine:
        run = runs_of(np.full((2, 4), 2))[0]
        memory = Buffer.of(np.zeros(store.run_bytes(run), np.uint8))
        engine.encoder.place(run.layer, run.part, run.first, run.count, memory)
        for count, offset in ((run.count + 1, 0), (run.count, 1), (run.count, -1)):
            with pytest.raises(ValueError, match="are not in Buffer"):
                engine.encoder.place(run.layer, run.part, run.first, count, memory, offset)


def test_int8_compute_stays_near_the_quantized_weights(
    tiny_model: Callable[..., Path], tiny_store: Callable[..., Path], kernel_cache: Path
) -> None:
    """int8 rounds centroids to 1/127 of the largest: at 4 bits that is well below the quantizer's error."""
    checkpoint = open_checkpoint(tiny_model())
    spec = checkpoint.spec
    bits = np.full((2, 4), 4)
    encoded = _encoded(checkpoint, 12)
    exact = run_model(spec, tensors_of(checkpoint), encoded.ids, encoded.types)
    expected = run_model(spec, quantized(checkpoint, bits), encoded.ids, encoded.types)
    with open_store(tiny_store()) as store, Engine(store, cache=kernel_cache, compute="int8") as engine:
        engine.hold(bits)
        measured = engine.answer(encoded, (0, 1), 4)
    assert np.abs(measured - expected).max() < 0.5 * np.abs(expected - exact).max() + 1e-2


def test_int8_products_keep_the_sums_of_these_slices_and_bits(
    tiny_store: Callable[..., Path], tiny_model: Callable[..., Path], kernel_cache: Path
) -> None:
    """Column sums of other bits, of another width or of more rows would change the answer."""
    spec = open_checkpoint(tiny_model()).spec
    encoded = [TokenizedInput(*random_ids(spec, n)) for n in (1, 2, 12)]
    rows = ([2, 2, 2, 2], [2, 2, 2, 2], [2, 6, 2, 2], [32, 6, 1, 2], [2, 2, 2, 2])
    with open_store(tiny_store()) as store, Engine(store, cache=kernel_cache, compute="int8") as kept:
        for row in rows:
            for width in (4, 2, 4):
                kept.hold(np.array([row, row]))
                with Engine(store, cache=kernel_cache, compute="int8") as fresh:
                    fresh.hold(np.array([row, row]))
                    for text in encoded:
                        answer = kept.answer(text, (0, 1), width)
                        np.testing.assert_array_equal(answer, fresh.answer(text, (0, 1), width))


@pytest.mark.skipif("bf16" not in FORMS, reason="this CPU has no products of bfloat16")
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_bf16_compute_stays_near_the_quantized_weights(
    tiny_model: Callable[..., Path], tiny_store: Callable[..., Path], kernel_cache: Path, family: str
) -> None:
    """Activations are rounded to 2**-9 of their size, centroids are bfloat16 already: below 2 % after all
    layers, and not the same numbers as float32's, which would be another arithmetic."""
    checkpoint = open_checkpoint(tiny_model(family))
    spec = checkpoint.spec
    bits = np.resize([2, 3, 4, 5, 6, 32], (2, 4))
    encoded = _encoded(checkpoint, 12)
    expected = run_model(spec, quantized(checkpoint, bits), encoded.ids, encoded.types)
    with open_store(tiny_store(family)) as store, Engine(store, cache=kernel_cache, compute="bf16") as engine:
        engine.hold(bits)
        measured = engine.answer(encoded, (0, 1), 4)
    error = np.sqrt(np.square(measured - expected).mean() / np.square(expected).mean())
    assert 1e-5 < error < 0.02


def test_a_longer_input_makes_room_for_itself(
    tiny_store: Callable[..., Path], tiny_model: Callable[..., Path], kernel_cache: Path
) -> None:
    """Lengths are bucketed for profiling, never for correctness."""
    checkpoint = open_checkpoint(tiny_model())
    spec = checkpoint.spec
    with open_store(tiny_store()) as store, Engine(store, cache=kernel_cache, tokens=4) as engine:
        engine.hold(np.full((2, 4), 32))
        encoded = _encoded(checkpoint, spec.max_tokens)
        expected = run_model(spec, tensors_of(checkpoint), encoded.ids, encoded.types)
        np.testing.assert_allclose(
            engine.answer(encoded, (0, 1), 4), expected, atol=TOLERANCE, rtol=TOLERANCE
        )


def test_room_for_more_rows_changes_no_bit(
    tiny_store: Callable[..., Path], tiny_model: Callable[..., Path], kernel_cache: Path
) -> None:
    """Graphs are compiled for a number of rows and run over fewer: as if compiled for these."""
    encoded = [_encoded(open_checkpoint(tiny_model()), n) for n in (1, 5, 2)]
    with (
        open_store(tiny_store()) as store,
        Engine(store, cache=kernel_cache, tokens=24) as roomy,
        Engine(store, cache=kernel_cache, tokens=1) as tight,
    ):
        for engine in (roomy, tight):
            engine.hold(np.full((2, 4), 5))
        for e in encoded:
            tight.encoder.reserve(len(e.ids))
            assert np.array_equal(roomy.answer(e, (0, 1), 4), tight.answer(e, (0, 1), 4))


def test_the_first_token_alone_is_an_answer(
    tiny_store: Callable[..., Path], tiny_model: Callable[..., Path], kernel_cache: Path
) -> None:
    """Embedding models that pool the first token have a head without a kernel."""
    head = Head("cls", None, None, True)
    checkpoint = open_checkpoint(tiny_model("bert", False, head=head))
    spec, encoded = checkpoint.spec, _encoded(checkpoint, 6)
    with (
        open_store(tiny_store("bert", False, head=head)) as store,
        Engine(store, cache=kernel_cache) as engine,
    ):
        engine.hold(np.full((2, 4), 32))
        expected = run_model(spec, tensors_of(checkpoint), encoded.ids, encoded.types)
        np.testing.assert_allclose(
            engine.answer(encoded, (0, 1), 4), expected, atol=TOLERANCE, rtol=TOLERANCE
        )


def test_one_thread_and_two_give_the_same_bits(
    tiny_store: Callable[..., Path], tiny_model: Callable[..., Path], kernel_cache: Path
) -> None:
    """Work is split over units that no two threads share, so the order of sums never changes."""
    encoded = _encoded(open_checkpoint(tiny_model()), 11)
    answers = []
    for n_threads in (1, 2):
        with (
            open_store(tiny_store()) as store,
            Engine(store, cache=kernel_cache, n_threads=n_threads) as engine,
        ):
            engine.hold(np.full((2, 4), 5))
            answers.append(engine.answer(encoded, (0, 1), 4))
    assert np.array_equal(answers[0], answers[1])


def test_real_weights_give_the_real_embedding(minilm: Path, tmp_path: Path, kernel_cache: Path) -> None:
    """Six layers of the real MiniLM at full fidelity, unit vectors: 1e-5 is a few hundred roundings."""
    from pliant.models.tokenizer import open_tokenizer
    from pliant.store.build import build

    checkpoint = open_checkpoint(minilm)
    encoded = open_tokenizer(minilm, checkpoint.spec).encode("a charming and often affecting journey")
    expected = run_model(checkpoint.spec, tensors_of(checkpoint), encoded.ids, encoded.types)
    with (
        open_store(build(checkpoint, tmp_path / "store")) as store,
        Engine(store, cache=kernel_cache) as engine,
    ):
        engine.hold(np.full((6, 12), 32))
        np.testing.assert_allclose(engine.answer(encoded, tuple(range(6)), 12), expected, atol=1e-5)


def test_runs_are_neighbouring_slices_of_one_part() -> None:
    """One run is one read: a gap or another bitwidth ends it."""
    runs = runs_of(np.array([[2, 2, 0, 1], [32, 32, 6, 0]]))
    assert [(r.layer, r.part, r.first, r.count) for r in runs if r.layer == 0] == [
        (0, 0, 0, 2), (0, 0, 3, 1), (0, 1, 0, 2),
    ]  # fmt: skip
    assert [(r.part, r.first, r.count) for r in runs if r.layer == 1] == [
        *[(part, 2, 1) for part in range(6)], (6, 0, 2),
    ]  # fmt: skip
