"""Options that a model's kind does not have, given to every verb: each is refused by name."""

from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from pliant.cli.app import app
from tests.cli.conftest import Cli
from tests.models.onnx_models import parse

SOFTMAX = parse("g (float[batch,3] x) => (float[batch,3] y) { y = Softmax(x) }")
KINDS = {"recurrent": "a recurrent model", "onnx": "an ONNX model", "compiled": "a compiled model"}
OF_TEXT_ENCODERS = (
    ("node", "--preload", "1MB"),
    ("node", "--depths", "any"),
    ("node", "--depths", "trained"),
    ("run", "--text", "a", "--preload", "1MB"),
    ("run", "--text", "a", "--length", "64"),
    ("run", "--text", "a", "--no-anytime"),
    ("plan", "--latency", "20ms"),
    ("plan", "--baseline", "stdpl-6"),
    ("plan", "--explain"),
    ("eval", "dev.tsv", "--length", "64"),
    ("eval", "dev.tsv", "--baseline", "stdpl-6"),
    ("bench", "--against", "", "--latency", "20ms"),
    ("bench", "--against", "", "--preload", "1MB"),
    ("inspect", "--verify"),
)
"""Verb and options; the last option is the one that is refused."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, str]:
    """A model of each kind that is no text encoder, and one that is."""
    folder = tmp_path_factory.mktemp("kinds")
    onnx.save(SOFTMAX, folder / "softmax.onnx")
    words = [str(folder / "softmax.onnx"), "--dim", "batch=1", "-o", str(folder / "out"), "--threads", "1"]
    compiled = CliRunner().invoke(app, ["compile", *words], env={"PLIANT_CACHE": str(cache)})
    assert compiled.exit_code == 0, compiled.output
    found = {"onnx": words[0], "compiled": str(folder / "out")}
    return {**found, "recurrent": "imdb-lstm", "encoder": "sst2"}


@pytest.mark.parametrize("words", OF_TEXT_ENCODERS, ids=" ".join)
@pytest.mark.parametrize("kind", KINDS)
def test_what_only_text_encoders_have_is_refused_by_name(
    cli: Cli, sources: dict[str, str], kind: str, words: tuple[str, ...]
) -> None:
    """Who gives an option would believe that it counts, a default that is given included."""
    verb, *rest = words
    option = " ".join(rest[max(i for i, word in enumerate(rest) if word.startswith("--")) :])
    _refused(cli, (verb, sources[kind], *rest), KINDS[kind], option)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("onnx", ("--length", "64")),
        ("compiled", ("--length", "64")),
        ("compiled", ("--weights", "4")),
        ("compiled", ("--dim", "batch=1")),
        ("recurrent", ("--bucket", "words=8,16")),
        ("encoder", ("--weights", "4")),
    ],
)
def test_bench_refuses_what_the_kind_that_it_times_does_not_have(
    cli: Cli, sources: dict[str, str], kind: str, words: tuple[str, ...]
) -> None:
    """Text has a length, an ONNX file has dimensions and weights to choose; no model has both."""
    what = KINDS.get(kind, "a text encoder")
    _refused(cli, ("bench", sources[kind], "--against", "", *words), what, " ".join(words))


@pytest.mark.parametrize("kind", ["recurrent", "compiled", "encoder"])
@pytest.mark.parametrize("verb", ["run", "plan", "eval", "node", "bench"])
def test_weights_are_chosen_for_onnx_models_alone(
    cli: Cli, sources: dict[str, str], kind: str, verb: str
) -> None:
    """A compiled model has those that it was compiled with, an encoder's are planned, fp32 included."""
    more = {"run": ("--text", "a"), "eval": ("dev.tsv",), "bench": ("--against", "")}.get(verb, ())
    what = KINDS.get(kind, "a text encoder")
    for bits in ("auto", "fp32"):
        _refused(cli, (verb, sources[kind], *more, "--weights", bits), what, f"--weights {bits}")


@pytest.mark.parametrize("kind", ["recurrent", "compiled"])
@pytest.mark.parametrize("verb", ["run", "node"])
@pytest.mark.parametrize("option", ["--compute int8", "--compute auto", "--tolerance 0.5"])
def test_arithmetic_is_chosen_for_text_encoders_and_onnx_models(
    cli: Cli, sources: dict[str, str], kind: str, verb: str, option: str
) -> None:
    """A compiled model has the one that it was compiled with."""
    more = ("--text", "a") if verb == "run" else ()
    _refused(cli, (verb, sources[kind], *more, *option.split()), KINDS[kind], option)


@pytest.mark.parametrize("words", [("--workers", "2"), ("--key", "cluster.key"), ("--tolerance", "0.5")])
def test_a_node_refuses_what_does_not_fit_the_place_where_it_answers(
    cli: Cli, words: tuple[str, ...]
) -> None:
    """On one device nobody is waited for, and float32 has no tolerance."""
    _refused(cli, ("node", "sst2", *words), "a text encoder", " ".join(words[-2:]))


def _refused(cli: Cli, words: tuple[str, ...], kind: str, option: str) -> None:
    result = cli(*words)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert f"is {kind}, which has no option {option}:" in result.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_no_options(cli: Cli, sources: dict[str, str], kind: str) -> None:
    """Nobody gave them to this model."""
    assert cli("plan", sources[kind]).exit_code == 0
    assert cli("inspect", sources[kind]).exit_code == 0
