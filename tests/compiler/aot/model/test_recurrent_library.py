"""A recurrent model as a C library, against its session."""

from pathlib import Path

import numpy as np
import pytest

import pliant
from pliant.api.compile_library import LibraryOptions, LibraryReport, compile_recurrent
from pliant.api.model import RecurrentNetwork
from pliant.compiler.executable.call import Target
from pliant.errors import InputError
from pliant.kernels.emit.isa import NEON, NEON_I8MM, Isa, host_isa
from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from tests.compiler.aot.model.c_model import CModel
from tests.compiler.aot.model.on_arm import answers_on_arm, skip_without_emulator
from tests.recurrent_models import write_recurrent

SPECS = {
    "lstm": RecurrentSpec("lstm", 10, 6, 5, pooling=("max", "mean"), labels=("no", "yes")),
    "gru": RecurrentSpec("gru", 10, 6, 16, n_layers=2, is_bidirectional=True, pooling=("last",)),
}
LENGTH = 80


@pytest.fixture(params=[*SPECS, "lstm-f16"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    name, _, half = request.param.partition("-")
    return write_recurrent(tmp_path / "model", SPECS[name], dtype="float16" if half else "float32")


TEXTS = ("good", "a good film .", "not a very bad plot , a film ." * 8)


def built(model: Path, length: int = LENGTH, isa: Isa | None = None) -> LibraryReport:
    options = LibraryOptions((), 0, length, Target(isa or host_isa(), 2))
    report = compile_recurrent(RecurrentNetwork("small", model), "small", options, model.parent / "out")
    assert report.library is not None, report.reason
    return report


def test_answers_are_the_sessions(linker: None, model: Path) -> None:
    """Cells, directions, layers and poolings; one word to the longest; vectors in both precisions."""
    report = built(model)
    with pliant.open(str(model), threads=2) as session, CModel(report.library, report.output) as opened:
        for text in TEXTS:
            answer = opened.run(text)
            assert answer.code == 0, answer.message
            reply = session(text)
            (name,) = (x for x in reply.outputs if x in ("logits", "vector"))
            np.testing.assert_array_equal(answer.numbers, reply.outputs[name][0])
            assert answer.label == reply.label


@pytest.mark.parametrize("isa", [NEON, NEON_I8MM], ids=lambda isa: isa.name)
def test_arm_answers_as_the_session(linker: None, model: Path, isa: Isa) -> None:
    """The library for 64-bit Arm under emulation."""
    skip_without_emulator()
    found = answers_on_arm(built(model, isa=isa), TEXTS)
    with pliant.open(str(model), threads=2) as session:
        replies = [session(text).outputs for text in TEXTS]
    (name,) = (x for x in replies[0] if x in ("logits", "vector"))
    np.testing.assert_allclose(found, [reply[name][0] for reply in replies], rtol=1e-5, atol=1e-5)


def test_what_it_cannot_read_is_told(linker: None, model: Path) -> None:
    """Before compiling and after."""
    with pytest.raises(InputError, match="give 1 to"):
        built(model, 1 << 20)
    report = built(model)
    with CModel(report.library, report.output) as opened:
        assert "takes 80" in opened.run("good " * 81).message
        assert "token id 10" in opened.run_ids([10]).message
        words = report.output / "words.safetensors"
        words.write_bytes(bytes(words.stat().st_size))
        assert "words.safetensors is damaged" in opened.run("good").message
