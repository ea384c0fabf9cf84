"""Answers to the bit: the shipped models and MiniLM at fixed submodels, bits and threads.

Protects: the order of every sum, from the packed weights to the answer. The values hold for one row of
instruction sets, in a file of its own; on a machine whose best row has no file the tests are skipped. The row
of AVX512-BF16 has none of coded models: makers of CPUs round sums of bfloat16 products each in their way.
Update: `pytest tests/guards/test_answers.py --update-golden` on a machine of each row that has files; the
commit says which sums are made otherwise. `weights` is the digest of the packed layers: where it differs
too, the quantizer changed (or numpy's sums did), and not only the kernels.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import pliant
from pliant.api.resolve import resolve
from pliant.kernels.emit.isa import host_isa
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.spec import picked_layers
from pliant.models.tokenizer import open_tokenizer
from pliant.run.submodel.engine import Engine
from pliant.store.build import build
from pliant.store.read import open_store
from tests.conftest import GOLDEN

TEXTS = ("a charming and often affecting journey", "too slow")
THREADS = (1, 2)
FULL, MIXED = (32,), (2, 3, 4, 5, 6, 32)
Case = tuple[int, int, tuple[int, ...], ComputeDtype]
CASES: tuple[Case, ...] = (
    *((6, 12, (bits,), "fp32") for bits in range(1, 7)),
    *((6, 12, FULL, "fp32"), (6, 12, MIXED, "fp32"), (4, 9, MIXED, "fp32"), (1, 3, MIXED, "fp32")),
    *((6, 12, (6,), "int8"), (3, 6, (4,), "int8")),
)
"""Layers, slices, bits repeated over the slices of a layer, and how products are computed."""

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.fixture
def golden_answers(
    request: pytest.FixtureRequest, golden_record: Callable[..., None]
) -> Callable[[str, dict[str, str]], None]:
    """`golden_answers(model, make)` compares what `make()` returns with the file of this machine's row."""
    isa = host_isa()
    row = f"{isa.name}{isa.features}"

    def compare(model: str, make: Callable[[], dict[str, str]]) -> None:
        name = f"answers_{model}_{row}.json"
        if not (GOLDEN / "guards" / name).exists() and not request.config.getoption("--update-golden"):
            pytest.skip(f"no answers are kept for {row}, this machine's row; --update-golden keeps them")
        golden_record(name, make())

    return compare


def test_the_shipped_classifier_answers_the_same(golden_answers: Callable[..., None], tmp_path: Path) -> None:
    """Uniform and mixed bits, whole and cut submodels, resident float32 and rounded int8 products."""
    golden_answers("sst2", lambda: _encoder_answers(resolve("sst2").path, tmp_path / "store", CASES))


def test_minilm_answers_the_same(minilm: Path, golden_answers: Callable[..., None], tmp_path: Path) -> None:
    """An encoder that nobody stretched, with a pooled vector for an answer."""
    cases = ((6, 12, FULL, "fp32"), (6, 12, MIXED, "fp32"))
    golden_answers("minilm", lambda: _encoder_answers(minilm, tmp_path / "store", cases))


def test_the_shipped_recurrent_model_answers_the_same(golden_answers: Callable[..., None]) -> None:
    """Float32 weights, one native call over all steps."""

    def answers() -> dict[str, str]:
        record = {}
        for n_threads in THREADS:
            model = pliant.open("imdb-lstm", threads=n_threads)
            for text in TEXTS:
                record[f"{n_threads} threads, {text}"] = _bits(model(text).logits)
            model.close()
        return record

    golden_answers("imdb-lstm", answers)


def _encoder_answers(model: Path, store: Path, cases: Sequence[Case]) -> dict[str, str]:
    """The answers of a model directory, packed, in each case."""
    checkpoint = open_checkpoint(model)
    spec = checkpoint.spec
    build(checkpoint, store)
    record = {"weights": _weights(store)}
    with open_store(store) as opened:
        encoded = [open_tokenizer(store, spec).encode(text) for text in TEXTS]
        for compute, n_threads in product(get_args(ComputeDtype), THREADS):
            chosen = [case for case in cases if case[3] == compute]
            if not chosen or (compute == "bf16" and not host_isa().has_bf16):
                continue
            with Engine(opened, n_threads=n_threads, compute=compute) as engine:
                for layers, width, bits, _ in chosen:
                    engine.hold(np.resize(bits, (spec.n_layers, spec.n_heads)))
                    for text, one in zip(TEXTS, encoded, strict=True):
                        answer = engine.answer(one, picked_layers(spec.n_layers, layers), width)
                        case = f"{layers}x{width} of {'/'.join(map(str, bits))} bits, {compute}"
                        record[f"{case}, {n_threads} threads, {text}"] = _bits(answer)
    return record


def _weights(store: Path) -> str:
    """A digest of the packed layers, whatever their files are called."""
    digests = sorted(sha256(file.read_bytes()).hexdigest() for file in store.rglob("*.safetensors"))
    return sha256("".join(digests).encode()).hexdigest()[:16]


def _bits(answer: np.ndarray) -> str:
    """A digest of the numbers' bytes, and the first two of them with all digits that float32 has."""
    assert answer.dtype == np.float32
    shown = " ".join(f"{x:.9g}" for x in answer[:2].tolist())
    return f"{sha256(answer.tobytes()).hexdigest()[:16]} ({shown})"
