"""A recurrent model as a C library, against its session."""

from pathlib import Path

import numpy as np
import pytest

import pliant
from pliant.api.compile_library import LibraryOptions, LibraryReport, compile_recurrent
from pliant.api.model import RecurrentNetwork
from pliant.compiler.executable.call import Target
from pliant.errors import InputError
from pliant.kernels.emit.isa import host_isa
from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from tests.compiler.aot.model.c_model import CModel
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


def built(model: Path, length: int = LENGTH) -> LibraryReport:
    options = LibraryOptions((), 0, length, Target(host_isa(), 2))
    report = compile_recurrent(RecurrentNetwork("small", model), "small", options, model.parent / "out")
    assert report.library is not None, report.reason
    return report


def test_answers_are_the_sessions(linker: None, model: Path) -> None:
    """Cells, directions, layers and poolings; one word to the longest; vectors in both precisions."""
    report = built(model)
    with pliant.open(str(model), threads=2) as session, CModel(report.library, report.output) as opened:
        for text in ("good", "a good film .", "not a very bad plot , a film ." * 8):
            answer = opened.run(text)
            assert answer.code == 0, answer.message
            reply = session(text)
            (name,) = (x for x in reply.outputs if x in ("logits", "vector"))
            np.testing.assert_array_equal(answer.numbers, reply.outputs[name][0])
            assert answer.label == reply.label


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
