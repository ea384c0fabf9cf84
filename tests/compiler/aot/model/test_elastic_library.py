"""An elastic model as a C library, against the engine that Python's session runs."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from pliant.api.compile_library import LibraryReport
from pliant.errors import BudgetError, InputError
from pliant.ir.reply import label_scores
from pliant.kernels.emit.isa import AVX2, NEON, X86_64, Isa, host_flags, needed_flags, vector_isa
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.spec import Head
from pliant.models.tokenizer import TokenizedInput, open_tokenizer
from pliant.run.submodel.engine import Engine
from pliant.store.build import build
from pliant.store.manifest import MANIFEST, read_manifest
from pliant.store.read import open_store
from tests.compiler.aot.foreign_rows import foreign_rows, isa_id
from tests.compiler.aot.model.c_model import CAnswer, CModel
from tests.compiler.aot.model.conftest import LENGTH, TARGETS_S, Build, compiled_program
from tests.compiler.aot.model.on_arm import answers_on_arm, skip_without_emulator
from tests.rows import FORMS
from tests.tiny import FAMILIES, random_ids

ELASTIC = {"n_layers": 4, "widths": (2, 4)}
ARGUMENT, EMPTY, TOO_LONG, TARGET, FILE, VERSION, DAMAGED, MEMORY = 1, 2, 3, 4, 6, 7, 8, 9
PROCESSOR = 11
PRELOAD_ALL = 1 << 30  # nothing is read in a run: weights that are late would change the answer
Stores = Callable[..., Path]


@pytest.fixture(scope="module")
def library(tiny_stores: Stores, build_library: Build) -> LibraryReport:
    """Of a model that can leave layers and slices out, with a preload buffer."""
    return build_library(tiny_stores(**ELASTIC), preload_bytes=8192)


@pytest.fixture
def copied(library: LibraryReport, tmp_path: Path) -> Path:
    """The library's directory, to be damaged."""
    return Path(shutil.copytree(library.output, tmp_path / "copy"))


def expected(store: Path, engine: Engine, encoded: TokenizedInput, bits: np.ndarray) -> np.ndarray:
    """The engine's answer with the bits that C says it ran with."""
    layers = tuple(np.flatnonzero(bits.any(axis=1)).tolist())
    engine.hold(bits.astype(int))
    return engine.answer(encoded, layers, int((bits[layers[0]] > 0).sum()))


def assert_same(answer: CAnswer, want: np.ndarray) -> None:
    """Equal to the bit: the same kernels over the same numbers."""
    assert answer.code == 0, answer.message
    np.testing.assert_array_equal(answer.numbers, want)


@pytest.mark.parametrize("is_classifier", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_head_answers_as_the_engine(
    family: str, is_classifier: bool, tiny_stores: Stores, build_library: Build
) -> None:
    """Tables, biases, projections, poolings and normalized vectors all find their place in C."""
    path = tiny_stores(family, is_classifier)
    report = build_library(path)
    with (
        open_store(path) as store,
        Engine(store, n_threads=2, tokens=LENGTH) as engine,
        CModel(report.library, report.output) as model,
    ):
        for n_tokens in (1, 2, 7, LENGTH):
            encoded = TokenizedInput(*random_ids(store.spec, n_tokens))
            answer = model.run_ids(encoded.ids, 0, encoded.types)
            want = expected(path, engine, encoded, answer.bits)
            assert answer.code == 0, answer.message
            # A vector is normalized in another order of additions.
            np.testing.assert_allclose(answer.numbers, want, rtol=0 if is_classifier else 1e-6, atol=0)


@pytest.mark.parametrize("compute", FORMS)
@pytest.mark.parametrize("preload_bytes", [0, 8192, 1 << 30])
def test_every_plan_answers_with_the_bits_it_tells(
    compute: str, preload_bytes: int, tiny_stores: Stores, build_library: Build
) -> None:
    """Small and large plans, nothing or all of the model in the preload buffer, on text and one token."""
    path = tiny_stores(**ELASTIC)
    report = build_library(path, preload_bytes=preload_bytes, compute=compute)
    with (
        open_store(path) as store,
        Engine(store, n_threads=2, tokens=LENGTH, compute=compute) as engine,
        CModel(report.library, report.output) as model,
    ):
        tokenizer = open_tokenizer(path, store.spec)
        for text in ("good", "it is a good film but the plot is bad", "not " * 20):
            encoded = tokenizer.encode(text)
            for target_us in (*(round(t * 1e6) for t in TARGETS_S), 0):
                answer = model.run(text, target_us)
                assert answer.n_tokens == encoded.n_tokens
                assert_same(answer, expected(path, engine, encoded, answer.bits))
                assert answer.read_bytes == 0 or preload_bytes < 1 << 30
                label = store.spec.head.labels[int(answer.numbers.argmax())]
                assert answer.label == label
                scores = np.exp(answer.numbers.astype(float))
                assert answer.score == pytest.approx(scores.max() / scores.sum(), rel=1e-6)


def test_the_score_of_a_single_label_is_its_sigmoid(tiny_stores: Stores, build_library: Build) -> None:
    """As in Python: the softmax of a reranker's one number would always be 1."""
    report = build_library(tiny_stores(head=Head("cls", "tanh", ("LABEL_0",))))
    with CModel(report.library, report.output) as model:
        answer = model.run("it is a good film")
        assert answer.label == "LABEL_0", answer.message
        assert answer.score == pytest.approx(label_scores(answer.numbers)[0], rel=1e-6)
        assert answer.score < 1.0


@pytest.mark.parametrize("compute", ["fp32", "int8"])
@pytest.mark.parametrize("isa", [X86_64, AVX2], ids=lambda isa: isa.name)
def test_every_row_answers_as_its_engine(
    isa: Isa, compute: str, tiny_stores: Stores, build_library: Build
) -> None:
    """Decode tables, blocks of rows and shares are those of the row that is compiled for."""
    path = tiny_stores()
    report = build_library(path, isa=isa, compute=compute)
    with (
        open_store(path) as store,
        Engine(store, n_threads=2, tokens=LENGTH, compute=compute, isa=isa) as engine,
        CModel(report.library, report.output) as model,
    ):
        for n_tokens in (1, 9, LENGTH):
            encoded = TokenizedInput(*random_ids(store.spec, n_tokens))
            answer = model.run_ids(encoded.ids, 0, encoded.types)
            assert_same(answer, expected(path, engine, encoded, answer.bits))


@pytest.mark.parametrize("isa", foreign_rows(), ids=isa_id)
def test_a_library_for_another_processor_names_the_missing_feature(
    isa: Isa, tiny_stores: Stores, build_library: Build
) -> None:
    """Its kernels would end the process with an illegal instruction."""
    report = build_library(tiny_stores(), isa=isa, compute="int8")
    code, message = CModel(report.library, report.output).failure
    assert code == PROCESSOR
    lacking = {*(needed_flags(isa) - host_flags()), "AMX"}
    assert any(f"use {name}" in message or "access to AMX" in message for name in lacking)
    assert "another --target" in message


def test_targets_choose_the_largest_within(library: LibraryReport) -> None:
    """Between two rungs the lower runs, without a target the highest, and below all none unless asked."""
    low, high = (round(t * 1e6) for t in TARGETS_S)
    with CModel(library.library, library.output) as model:
        assert model.run("good", high).target_us == high
        assert model.run("good", high - 1).target_us == low
        assert model.run("good").target_us == high
        refused = model.run("good", low - 1)
        assert refused.code == TARGET
        assert f"the least target is {low} us" in refused.message
        assert not np.isfinite(refused.numbers).any()  # nothing was run
    with CModel(library.library, library.output, best_effort=True) as model:
        assert model.run("good", 1).target_us == low


def test_plans_are_those_of_the_session(library: LibraryReport, tiny_stores: Stores) -> None:
    """What is planned runs: where reads are not late, bits are the plan's."""
    by_target = {round(p.budget.target_s * 1e6): p for p in library.plans[: len(TARGETS_S)]}
    with CModel(library.library, library.output) as model:
        for target_us, plan in by_target.items():
            answer = model.run("good", target_us)
            base = np.array(plan.base_bits)
            ran = answer.bits[list(plan.layers), : plan.width]
            assert (np.minimum(ran, 7) >= np.minimum(base, 7)).all()


def test_late_reads_cost_bits_and_not_the_answer(tiny_stores: Stores, build_library: Build) -> None:
    """A device planned as so quick that every refinement is late: layers run with what they have."""
    path = tiny_stores(**ELASTIC)
    report = build_library(path, targets_s=(1e-3,), read_Bps=1e12)
    with (
        open_store(path) as store,
        Engine(store, n_threads=2, tokens=LENGTH) as engine,
        CModel(report.library, report.output) as model,
    ):
        encoded = TokenizedInput(*random_ids(store.spec, 5))
        for _ in range(20):
            answer = model.run_ids(encoded.ids, 0, encoded.types)
            assert_same(answer, expected(path, engine, encoded, answer.bits))


def test_threads_share_a_model(library: LibraryReport) -> None:
    """Runs take turns: each thread gets the answer that it gets alone."""
    texts = ["good", "bad film", "the plot was not good", "a movie or a story of an actor"]
    with CModel(library.library, library.output, best_effort=True) as model:
        found: dict[int, list[CAnswer]] = {i: [] for i in range(len(texts))}

        def ask(i: int) -> None:
            found[i] = [model.run(texts[i], 0) for _ in range(20)]

        threads = [Thread(target=ask, args=(i,)) for i in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i, text in enumerate(texts):
            alone = model.run(text, 0)
            same = [a for a in found[i] if np.array_equal(a.bits, alone.bits)]
            assert same
            assert all(a.n_tokens == alone.n_tokens for a in found[i])
            for answer in same:
                np.testing.assert_array_equal(answer.numbers, alone.numbers)


def test_two_models_are_open_at_once(library: LibraryReport) -> None:
    """There is no global state."""
    with CModel(library.library, library.output, 1) as one, CModel(library.library, library.output, 2) as two:
        answers = [model.run("good film") for model in (one, two)]
        assert [a.code for a in answers] == [0, 0]
        assert one.about.most_tokens == LENGTH


def test_bad_input_is_told(library: LibraryReport) -> None:
    """Ids that do not exist, none, too many, wrong types, no words."""
    with CModel(library.library, library.output) as model:
        for ids, types, said in (
            ([5, 64], None, "token id 64, number 1 of the input, is none of 0 to 63"),
            ([-1], None, "token id -1"),
            ([], None, "there are no ids"),
            ([5], [2], "token type 2"),
        ):
            answer = model.run_ids(ids, 0, types)
            assert answer.code == ARGUMENT
            assert said in answer.message
        for answer in (model.run_ids([5] * (LENGTH + 1)), model.run("good " * 40)):
            assert answer.code == TOO_LONG
            assert f"takes {LENGTH}" in answer.message
        for text in ("", "  \n", b"\xff\xfe"[:0]):
            assert model.run(text).code == EMPTY
        assert model.run("good").code == 0  # none of that does harm


def test_padding_has_no_place(tiny_stores: Stores, build_library: Build) -> None:
    """RoBERTa counts no position for it: tokens behind it would shift, as a session says too."""
    report = build_library(tiny_stores("roberta"))
    with CModel(report.library, report.output) as model:
        answer = model.run_ids([0, 1, 5])
        assert (answer.code, "is padding (id 1)" in answer.message) == (ARGUMENT, True)
        assert model.run_ids([0, 5]).code == 0


def test_missing_cut_and_damaged_files_are_told(library: LibraryReport, copied: Path) -> None:
    """Each names its file and what to do; nothing is answered from damaged weights."""
    layer = copied / "store" / "layer-00.safetensors"
    whole = layer.read_bytes()
    layer.write_bytes(whole[:-4096])
    code, message = CModel(library.library, copied).failure
    assert (code, "layer-00" in message, "it was cut or changed" in message) == (FILE, True, True)
    layer.unlink()
    code, message = CModel(library.library, copied).failure
    assert (code, "No such file" in message) == (FILE, True)
    layer.write_bytes(bytes(len(whole)))
    model = CModel(library.library, copied)
    failed = model.failure if model.failure[0] else (lambda a: (a.code, a.message))(model.run("good"))
    assert failed[0] == DAMAGED
    assert "layer-00.safetensors is damaged" in failed[1]
    layer.write_bytes(whole)
    for name in ("tables.safetensors", "text.safetensors"):
        path = copied / name
        kept = path.read_bytes()
        path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        code, message = CModel(library.library, copied).failure
        assert (code, f"{name} of" in message) == (DAMAGED, True)
        path.write_bytes(kept)
    words = copied / "store" / "embeddings.safetensors"
    words.write_bytes(bytes(words.stat().st_size))
    with CModel(library.library, copied) as model:
        answer = model.run("good")
        assert (answer.code, "row" in answer.message) == (DAMAGED, True)


def test_another_store_or_version_is_refused(library: LibraryReport, copied: Path) -> None:
    """Weights of another model, or of a format that is not known, must not be read as if they were these."""
    path = copied / "store" / MANIFEST
    text = path.read_text()
    version, identity = read_manifest(copied / "store").version, read_manifest(copied / "store").identity
    for old, new, said in (
        (f'"version": {version}', '"version": 99', "is of format version 99"),
        (identity, "0" * 64, "is not the one this library was compiled from"),
    ):
        assert old in text
        path.write_text(text.replace(old, new))
        code, message = CModel(library.library, copied).failure
        assert code == VERSION
        assert said in message
    for cut in ('{"version": 3, "identity":', '{"version": 3', ""):
        path.write_text(cut)
        assert CModel(library.library, copied).failure[0] in (FILE, VERSION)
    path.unlink()
    assert CModel(library.library, copied).failure[0] == FILE


def test_a_preload_holds_layers_that_plans_run(tiny_stores: Stores, build_library: Build) -> None:
    """A store's other layers have no file in the library: it could not be opened."""
    report = build_library(tiny_stores(**ELASTIC), preload_bytes=1 << 20, targets_s=(0.0012,))
    with CModel(report.library, report.output) as model:
        answer = model.run("good")
        assert answer.code == 0, answer.message
        assert not answer.bits.any(axis=1).all(), "it leaves a layer out"


@pytest.mark.parametrize("preload_bytes", [0, PRELOAD_ALL])
def test_a_store_of_some_bits_answers_with_these(
    preload_bytes: int, tiny_model: Callable[..., Path], build_library: Build, tmp_path: Path
) -> None:
    """Plans in C ask for no part that was not packed."""
    path = build(open_checkpoint(tiny_model("bert", **ELASTIC)), tmp_path / "store", bits=(2, 4))
    report = build_library(path, preload_bytes=preload_bytes)
    with (
        open_store(path) as store,
        Engine(store, n_threads=2, tokens=LENGTH) as engine,
        CModel(report.library, report.output) as model,
    ):
        encoded = TokenizedInput(*random_ids(store.spec, 7))
        for target_s in TARGETS_S:
            answer = model.run_ids(encoded.ids, round(1e6 * target_s), encoded.types)
            assert answer.code == 0, answer.message
            assert_same(answer, expected(path, engine, encoded, answer.bits))
            assert answer.bits.max() <= 4


def test_a_text_of_any_length_is_refused_before_it_is_read_to_its_end(library: LibraryReport) -> None:
    """Each holds the model's lock meanwhile: nothing grows with it but what is counted."""
    with CModel(library.library, library.output) as model:
        for text in ("a " * 1_000_000, "e" + "\u0301" * 1_000_000):
            assert model.run(text).code in (TOO_LONG, MEMORY, 0)
        assert model.run("good").code == 0


_SIGNALS = """
#define _GNU_SOURCE
#include "pliant_model.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct pliant_error error;
    struct pliant_model *model = pliant_model_open(argv[argc - 1], NULL, &error);
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, NULL);
    int descriptor = signalfd(-1, &term, 0);
    struct signalfd_siginfo told;
    kill(getpid(), SIGTERM);
    if (!model || read(descriptor, &told, sizeof told) != sizeof told)
        return 1;
    puts("told");
    pliant_model_close(model);
    return 0;
}
"""


def test_a_programs_signals_are_its_own(library: LibraryReport, tmp_path: Path) -> None:
    """A daemon that blocks SIGTERM and waits for it must not be ended by a thread of the library."""
    source = tmp_path / "signals.c"
    source.write_text(_SIGNALS)
    program = compiled_program(library, source)
    done = subprocess.run([program, library.output], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "told\n")


def test_what_cannot_be_had_is_told_before_anything_is_written(
    tiny_stores: Stores, build_library: Build, tmp_path: Path
) -> None:
    """A target that nothing meets names the nearest one that is; lengths and places are checked."""
    path = tiny_stores(**ELASTIC)
    with pytest.raises(BudgetError, match="within 10 µs"):
        build_library(path, targets_s=(1e-5,))
    with pytest.raises(InputError, match="must increase"):
        build_library(path, targets_s=(0.2, 0.1))
    with pytest.raises(InputError, match="give some"):
        build_library(path, targets_s=())


def test_the_example_answers(tiny_stores: Stores, build_library: Build) -> None:
    """The program that is written beside the library links without a warning, and says what it does."""
    library = build_library(tiny_stores(**ELASTIC), preload_bytes=PRELOAD_ALL)
    program = compiled_program(library, library.output / "example.c")
    done = subprocess.run([program, library.output, "good film"], capture_output=True, text=True, check=True)
    with CModel(library.library, library.output) as model:
        assert done.stdout.startswith(f"{model.run('good film').label} (")
    failed = subprocess.run([program, library.output, ""], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "no token" in failed.stderr


def test_arm_answers_as_this_machine(tiny_stores: Stores, build_library: Build) -> None:
    """The library for 64-bit Arm under emulation: text in, the same numbers out."""
    skip_without_emulator()
    path, texts = tiny_stores(**ELASTIC), ("good film", "bad, bad plot.")
    found = answers_on_arm(build_library(path, isa=NEON, preload_bytes=PRELOAD_ALL), texts)
    here = build_library(path, isa=vector_isa(), preload_bytes=PRELOAD_ALL)
    with CModel(here.library, here.output) as model:
        np.testing.assert_allclose(found, [model.run(text).numbers for text in texts], atol=1e-5)
