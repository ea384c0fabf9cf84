"""Several texts in one run: what each would answer alone, for all lengths, widths, bits and threads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.spec import Head
from pliant.models.tokenizer import TokenizedInput
from pliant.run.submodel.engine import Engine
from pliant.store.read import open_store
from tests.reference_model import run_model
from tests.rows import FORMS
from tests.run.submodel.stored_tensors import quantized
from tests.tiny import FAMILIES, random_ids, tiny_spec

BITS = np.array([[1, 2, 3, 4], [5, 6, 32, 2]])
# float32 against float64 through two layers of norm-1 activations: a few hundred roundings of 6e-8.
TOLERANCE = 1e-4
# Two such sums of the same numbers in different orders.
ROUNDING = 2e-5
# In bfloat16 such a difference may turn the rounding of an activation: 2**-8 of it, then through a layer.
TURNED_ROUNDING = 2.0**-6
MOST_TOKENS = tiny_spec().max_tokens


@contextmanager
def _engine(
    path: Path, cache: Path, *, n_threads: int = 1, compute: ComputeDtype = "fp32"
) -> Iterator[Engine]:
    with (
        open_store(path) as store,
        Engine(store, cache=cache, n_threads=n_threads, compute=compute, tokens=4) as engine,
    ):
        engine.hold(BITS)
        yield engine


def _texts(lengths: list[int], family: str = "bert", seed: int = 0) -> list[TokenizedInput]:
    spec = tiny_spec(family)  # type: ignore[arg-type]
    return [TokenizedInput(*random_ids(spec, n, seed=seed + i)) for i, n in enumerate(lengths)]


@pytest.fixture(scope="module")
def engines(
    tiny_store: Callable[..., Path], kernel_cache: Path
) -> Iterator[dict[tuple[int, ComputeDtype], Engine]]:
    """One engine for each number of threads and each way to compute."""
    made: dict[tuple[int, ComputeDtype], Engine] = {}
    with open_store(tiny_store()) as store:
        for n_threads in (1, 2):
            for compute in FORMS:
                engine = Engine(store, cache=kernel_cache, n_threads=n_threads, compute=compute, tokens=4)
                engine.hold(BITS)
                made[n_threads, compute] = engine
        yield made
        for engine in made.values():
            engine.close()


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(2, MOST_TOKENS), min_size=1, max_size=9),
    submodel=st.sampled_from([((0, 1), 4), ((0, 1), 3), ((0,), 2), ((1,), 1)]),
    n_threads=st.sampled_from([1, 2]),
    compute=st.sampled_from(FORMS),
    seed=st.integers(0, 1000),
)
def test_texts_together_answer_as_each_alone(
    engines: dict[tuple[int, ComputeDtype], Engine],
    lengths: list[int],
    submodel: tuple[tuple[int, ...], int],
    n_threads: int,
    compute: ComputeDtype,
    seed: int,
) -> None:
    """The promise of a batch; int8 products are exact, so nothing is left that could differ."""
    engine, texts = engines[n_threads, compute], _texts(lengths, seed=seed)
    alone = np.stack([engine.answer(text, *submodel) for text in texts])
    together = np.stack(engine.answers(texts, *submodel))
    if compute == "int8" or len(texts) == 1:
        assert np.array_equal(together, alone)
    elif compute == "bf16":
        np.testing.assert_allclose(together, alone, atol=TURNED_ROUNDING * np.abs(alone).max(), rtol=0)
    else:
        np.testing.assert_allclose(together, alone, atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize("is_classifier", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_together_answer_as_the_model_in_float64(
    family: str,
    is_classifier: bool,
    tiny_model: Callable[..., Path],
    tiny_store: Callable[..., Path],
    kernel_cache: Path,
) -> None:
    """The longest text beside the shortest: positions, types and pooling are each text's own."""
    checkpoint = open_checkpoint(tiny_model(family, is_classifier))
    tensors, texts = quantized(checkpoint, BITS), _texts([MOST_TOKENS, 2, 7, 1, MOST_TOKENS], family)
    expected = [run_model(checkpoint.spec, tensors, text.ids, text.types, 2, 3) for text in texts]
    with _engine(tiny_store(family, is_classifier), kernel_cache) as engine:
        np.testing.assert_allclose(
            np.stack(engine.answers(texts, (0, 1), 3)), np.stack(expected), atol=TOLERANCE, rtol=TOLERANCE
        )


def test_the_first_token_of_each_text_is_its_answer(
    tiny_store: Callable[..., Path], kernel_cache: Path
) -> None:
    """A head without a kernel copies a row out of what the layers left: the text's own."""
    head = Head("cls", None, None, True)
    with _engine(tiny_store("bert", False, head=head), kernel_cache) as engine:
        texts = _texts([5, 9, 3])
        alone = np.stack([engine.answer(text, (0, 1), 4) for text in texts])
        np.testing.assert_allclose(np.stack(engine.answers(texts, (0, 1), 4)), alone, atol=ROUNDING)


def test_a_batch_makes_room_for_its_rows(tiny_store: Callable[..., Path], kernel_cache: Path) -> None:
    """The limit of tokens is of one text; a batch of many more rows runs, and a short text runs after it."""
    texts = _texts([MOST_TOKENS] * 5)
    with _engine(tiny_store(), kernel_cache) as engine:
        first = engine.answer(texts[0], (0, 1), 4)
        answers = engine.answers(texts, (0, 1), 4)
        assert engine.encoder.tokens >= 5 * MOST_TOKENS
        np.testing.assert_allclose(answers[0], first, atol=ROUNDING)
        assert np.array_equal(engine.answer(texts[0], (0, 1), 4), first)
