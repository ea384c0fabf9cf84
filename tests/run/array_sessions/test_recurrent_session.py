"""Recurrent models run, against torch and a float64 loop."""

from pathlib import Path

import numpy as np
import pytest

from pliant.errors import InputError
from pliant.ir.endpoint import Request
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.recurrent.recurrent_source import RecurrentSource, open_recurrent_source, random_recurrent
from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from pliant.run.array_sessions.recurrent_session import RecurrentSession
from tests.compiler.rules.run_node import machine
from tests.kernels import reference
from tests.recurrent_models import torchs_answer, torchs_layers, write_recurrent

ISAS = [AVX2, X86_64, to_portable(AVX512)]
LENGTHS = (1, 2, 3, 17, 64, 65, 130)
TOLERANCE = 1e-5  # the issue's; sums of some hundred float32 numbers below 1, through bounded activations
CELLS = [
    RecurrentSpec("lstm", 10, 6, 20, pooling=("max", "mean"), labels=("bad", "good")),
    RecurrentSpec("lstm", 10, 5, 13, n_layers=2, is_bidirectional=True, pooling=("last", "max")),
    RecurrentSpec("lstm", 10, 33, 300, pooling=("last",), labels=("a", "b", "c")),
    RecurrentSpec("gru", 10, 7, 37, is_bidirectional=True, pooling=("mean", "last"), labels=("bad", "good")),
    RecurrentSpec("gru", 10, 16, 64, n_layers=2, pooling=("last",)),
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def opened(folder: Path, spec: RecurrentSpec, isa: Isa, cache: Path) -> RecurrentSession:
    return RecurrentSession(open_recurrent_source(write_recurrent(folder, spec)), *machine(isa, cache))


def numbers(model: RecurrentSession, ids: np.ndarray) -> np.ndarray:
    """The answer to words by number: logits, or the vector."""
    return model.run({"ids": ids[None]})[model.outputs[0].name][0]


def words(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 10, n).astype(np.int32)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("spec", CELLS, ids=lambda s: f"{s.cell} {s.n_layers}x{s.directions}x{s.hidden}")
def test_answers_are_torchs_at_all_lengths(
    spec: RecurrentSpec, isa: Isa, tmp_path: Path, cache: Path
) -> None:
    """One length after the other, shorter ones behind longer: nothing of a run is left for the next."""
    pytest.importorskip("torch")
    model = opened(tmp_path, spec, isa, cache)
    for n in (*LENGTHS, *reversed(LENGTHS)):
        want = torchs_answer(model.source, words(n))
        np.testing.assert_allclose(numbers(model, words(n)), want, rtol=0, atol=TOLERANCE, err_msg=str(n))


def test_states_of_an_encoder_are_torchs(tmp_path: Path, cache: Path) -> None:
    """What CoVe is for: a vector for each word, both directions side by side."""
    torch = pytest.importorskip("torch")
    spec = RecurrentSpec("lstm", 10, 30, 40, n_layers=2, is_bidirectional=True)
    model = opened(tmp_path, spec, AVX2, cache)
    x = np.random.default_rng(0).standard_normal((90, 30)).astype(np.float32)
    with torch.no_grad():
        want = np.asarray(torchs_layers(model.source)(torch.from_numpy(x)[:, None])[0][:, 0])
    np.testing.assert_allclose(model.states(x), want, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_states_are_those_of_a_plain_loop(cell: str, tmp_path: Path, cache: Path) -> None:
    """The oracle knows neither torch nor onnxruntime."""
    model = opened(tmp_path, RecurrentSpec(cell, 10, 6, 21), AVX2, cache)  # type: ignore[arg-type]
    x = np.random.default_rng(1).standard_normal((40, 6)).astype(np.float32)
    named = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    w, r, b_input, b_hidden = (model.source.weights[f"rnn.{name}_l0"] for name in named)
    if cell == "lstm":
        want = reference.lstm(x, w, r, b_input + b_hidden)
    else:
        want = reference.gru(x, w, r, b_input, b_hidden)
    np.testing.assert_allclose(model.states(x), want, rtol=0, atol=TOLERANCE)


def test_a_classifier_says_the_best_label_and_its_probability(tmp_path: Path, cache: Path) -> None:
    """What a router's endpoint replies."""
    model = opened(tmp_path, CELLS[0], AVX2, cache)
    reply = model("A very good film.", latency="60s")
    chances = np.exp(reply.logits) / np.exp(reply.logits).sum()
    assert reply.label == ("bad", "good")[int(chances.argmax())]
    assert reply.score == pytest.approx(float(chances.max()), abs=1e-6)
    assert (reply.length, reply.met, reply.accuracy) == (5, True, None)
    assert reply.outputs["label"].tolist() == [reply.label.encode()]


def test_an_encoder_gives_a_vector_and_no_label(tmp_path: Path, cache: Path) -> None:
    """Its pooled features, in the order of its poolings."""
    reply = opened(tmp_path, CELLS[1], AVX2, cache)("a film")
    assert (reply.label, reply.score, reply.logits, reply.vector.shape) == (None, None, None, (52,))


def test_two_threads_and_one_answer_alike(tmp_path: Path, cache: Path) -> None:
    """How work is shared may not change a digit that matters."""
    source = open_recurrent_source(write_recurrent(tmp_path, CELLS[1]))
    library = Library(AVX2, cache)
    with ThreadPool(1, library) as alone, ThreadPool(2, library) as both:
        one, two = (numbers(RecurrentSession(source, library, pool), words(50)) for pool in (alone, both))
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)


def test_vectors_of_another_size_and_closed_models_are_refused(tmp_path: Path, cache: Path) -> None:
    """Before a kernel sees them."""
    model = opened(tmp_path, CELLS[0], AVX2, cache)
    for shape in ((3, 5), (0, 6), (16_385, 6)):
        with pytest.raises(InputError, match="cannot be read"):
            model.states(np.zeros(shape, np.float32))
    model.close()
    with pytest.raises(InputError, match="closed"):
        model("a film")


def test_a_closed_session_keeps_no_memory(tmp_path: Path, cache: Path) -> None:
    """Words and weights are most of what a recurrent model takes."""
    with opened(tmp_path, CELLS[0], AVX2, cache) as model:
        model("a film")
        assert model.memory.measured_bytes > 0
    assert (model.memory.measured_bytes, model.weight_bytes) == (0, 0)
    for refused in (lambda: model.plan, lambda: model.profile({"ids": np.int64([[1]])})):
        with pytest.raises(InputError, match="closed"):
            refused()


def test_weights_are_packed_once_for_all_lengths(tmp_path: Path, cache: Path) -> None:
    """A long input costs room for its steps, never a second copy of the weights."""
    model = opened(tmp_path, CELLS[2], AVX2, cache)
    before = model.weight_bytes
    numbers(model, words(1000))
    assert model.weight_bytes == before


def test_the_source_is_any_that_has_a_spec(cache: Path) -> None:
    """Random weights run as trained ones do."""
    pytest.importorskip("torch")
    source: RecurrentSource = random_recurrent("cove-200")
    answer = RecurrentSession(source, *machine(AVX2, cache))("A man inspects the uniform of a figure.")
    want = torchs_answer(source, source.encode("A man inspects the uniform of a figure.").ids)
    np.testing.assert_allclose(answer.vector, want, rtol=0, atol=TOLERANCE)


def test_a_length_that_was_explained_is_ready(tmp_path: Path, cache: Path) -> None:
    """A node that measures itself must not see forms being made; lengths may come in any order then."""
    model = opened(tmp_path, CELLS[0], AVX2, cache)
    want = {n: numbers(model, words(n)) for n in LENGTHS}
    model.close()
    model = opened(tmp_path, CELLS[0], AVX2, cache)
    assert model.plan.forms == (64,)
    assert model.explain(130).forms == (64, 128, 256)
    held = model.weight_bytes
    for n in reversed(LENGTHS):
        np.testing.assert_array_equal(numbers(model, words(n)), want[n])
    assert model.plan.forms == (64, 128, 256)
    assert model.weight_bytes == held


def test_a_list_is_answered_as_its_texts_are(tmp_path: Path, cache: Path) -> None:
    """In its order, of different lengths; a text that cannot be read is named, and none is answered then."""
    model = opened(tmp_path, CELLS[0], AVX2, cache)
    texts = ["a good film", "bad", "the story was not good at all"]
    for text, reply in zip(texts, model(texts), strict=True):
        np.testing.assert_allclose(reply.logits, model(text).logits, rtol=0, atol=TOLERANCE)
    with pytest.raises(InputError, match="text 1 of the list"):
        model(["a good film", ""])
    with pytest.raises(InputError, match="one text and no pair"):
        model("a good film", "a bad film")


def test_its_plan_and_profile_tell_what_runs(tmp_path: Path, cache: Path) -> None:
    """The calls of the profile are those of the plan; bytes are those of the length, not of the form."""
    model = opened(tmp_path, CELLS[1], AVX2, cache)
    short, long = model.explain(10), model.explain(40)
    profile = model.profile({"ids": words(40)[None]}, runs=3)
    assert {o.op: o.n_calls for o in long.operators} == {o.op: o.n for o in profile.by_operator()}
    assert profile.runs == 3
    n_bytes = [next(o.n_bytes for o in plan.operators if o.op == "LSTM") for plan in (short, long)]
    assert n_bytes[1] - n_bytes[0] > 30 * 4 * model.spec.width  # at least the states of 30 more words
    assert long.expected_s is None
    model.answer(model.request(model.sample(40)))
    assert model.explain(40).expected_s > 0
    for page in (str(long), long._repr_html_()):
        assert "40 words" in page
        assert "both directions" in page
    with pytest.raises(InputError, match="16385 words is not read; give 1 to 16384"):
        model.explain(16_385)


def test_a_profile_takes_a_text_as_a_call_does(tmp_path: Path, cache: Path) -> None:
    """The same word for both kinds of text models."""
    model = opened(tmp_path, CELLS[0], AVX2, cache)
    by_text, by_name = model.profile("a good film", 2), model.profile({"text": "a good film"}, 2)
    assert [step.label for step in by_text.steps] == [step.label for step in by_name.steps]


@pytest.mark.parametrize("word", [-1, 10, 2**31 - 1])
def test_a_request_made_by_hand_is_checked_too(word: int, tmp_path: Path, cache: Path) -> None:
    """A word of a negative number would be the table's last."""
    model = opened(tmp_path, CELLS[0], AVX2, cache)
    ids = np.array([1, word], np.int32)
    with pytest.raises(InputError, match=f"word {word} is not one of"):
        model.answer(Request(2, tensors={"ids": ids, "types": np.zeros_like(ids)}))
