"""Guard: the keys of what every verb prints with `--json`, with their types, at every depth.

Protects scripts that read it. A key may be added; one that goes, is renamed or changes its type needs a line
in CHANGELOG.md. Update by `pytest tests/guards/test_json.py --update-golden`. A verb that is added belongs
into one of the tests below: the last one fails until it is there. `stretch`, which needs torch, is guarded
where it is tested, in tests/cli/test_stretch_model.py.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from pliant.api.open_cluster import Cluster
from pliant.cli.app import app
from tests.cluster.processes import MAIN, small_model, workers
from tests.conftest import GOLDEN
from tests.guards.forms import shape_of
from tests.guards.test_options import verbs

MAPS = ("kernels", "operators", "opsets", "inputs", "outputs", "weight_bytes")
"""Keys of objects whose own keys are names out of the model: kernels, operators, tensors, devices."""
VARIES = {
    "frequency_Hz": "float|null",
    "frequency_reason": "null|str",
    "latest_refinement_s": [["float|null"]],
}
"""Keys that hold null on some machines, or at some speeds."""
PATIENCE_S = 120
LATENCY = ("--latency", "30s", "--threads", "1")

Say = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dev file, an ONNX model, a cluster's key; one cache for all verbs."""
    made = tmp_path_factory.mktemp("json")
    (made / "dev.tsv").write_text("sentence\tlabel\na good film\t1\nthe plot is bad\t0\n")
    weights = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [weights],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), made / "small.onnx")
    return made


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("bert", widths=(2, 4))


@pytest.fixture(scope="module")
def lines(folder: Path) -> Callable[..., list[Any]]:
    """`lines("run", model, ...)` is what the verb prints with `--json`, an object a line."""

    def invoke(*words: object) -> list[Any]:
        environment = {"PLIANT_CACHE": str(folder / "cache")}
        result = CliRunner().invoke(app, [*map(str, words), "--json"], env=environment)
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    return invoke


@pytest.fixture
def keys(golden: Callable[[str, str], None]) -> Callable[..., None]:
    """`keys(name, lines)` compares the union of what a verb printed; the name is VERB or VERB-CASE."""

    def compare(name: str, printed: list[Any]) -> None:
        (shape,) = shape_of(printed, MAPS)
        golden(
            f"guards/json/{name.replace(' ', '_')}.json",
            json.dumps(_portable(shape), indent=1) + "\n",
        )

    return compare


def _portable(shape: Any) -> Any:
    if isinstance(shape, dict):
        return {key: VARIES.get(key) or _portable(item) for key, item in shape.items()}
    return [_portable(item) for item in shape] if isinstance(shape, list) else shape


def test_pack_profile_plan_run_and_inspect(lines: Say, keys: Say, model: Path, folder: Path) -> None:
    """A model of random weights, packed, measured for a moment, planned and run.

    It brings the tables of importance and accuracy, without which keys would hold null.
    """
    store, importance, accuracy = folder / "s.store", folder / "importance.json", folder / "accuracy.json"
    importance.write_text(json.dumps([[1.0, 2.0, 3.0, 4.0]] * 2))
    accuracy.write_text(json.dumps(_accuracy()))
    keys("pack", lines("pack", model, "-o", store, "--importance", importance, "--accuracy", accuracy))
    keys("profile", lines("profile", store, "--lengths", "8,24", "--seconds", "0.1", "--threads", "1"))
    asked = (store, *LATENCY, "--length", "8")
    keys("plan", lines("plan", *asked))
    keys("run", lines("run", *asked, "--text", "a good film"))
    keys("eval", lines("eval", store, folder / "dev.tsv", *LATENCY, "--length", "8"))
    keys("inspect-store", lines("inspect", store))
    keys("demo", lines("demo", store, "--latency", "30s"))


def _accuracy() -> dict[str, Any]:
    """Of both widths of both depths, from 8 examples in two folds."""
    places = [(n, m) for n in (1, 2) for m in (2, 4)]
    entries = [{"n": n, "m": m, "bits": 32, "accuracy": 0.5, "log_likelihood": -0.5} for n, m in places]
    fold = {"n_examples": 4, "accuracy": [0.5] * len(places), "log_likelihood": [-0.5] * len(places)}
    return {"n_examples": 8, "entries": entries, "folds": [fold, fold]}


def test_recurrent_models(lines: Say, keys: Say, folder: Path) -> None:
    """They answer without a target too."""
    (folder / "labels.tsv").write_text("sentence\tlabel\na good film\tgood\nthe plot is bad\tbad\n")
    model = _small_recurrent(folder)
    keys("run-recurrent", lines("run", model, *LATENCY, "--text", "a good film"))
    keys("eval-recurrent", lines("eval", model, folder / "labels.tsv", *LATENCY))
    keys("plan-recurrent", lines("plan", model, "--threads", "1"))
    keys("profile-recurrent", lines("profile", model, "--seconds", "0.1", "--threads", "1"))
    keys("inspect-recurrent", lines("inspect", model))


def _small_recurrent(folder: Path) -> str:
    """A GRU of 8 units whose weights are random."""
    sizes = {"vocab_size": 50, "embedding_size": 8, "hidden_size": 8, "num_layers": 1}
    more = {"bidirectional": False, "pooling": ["last"], "id2label": {"0": "bad", "1": "good"}}
    (folder / "gru.json").write_text(json.dumps({"model_type": "recurrent", "cell": "gru", **sizes, **more}))
    return f"random:{folder / 'gru.json'}"


def test_onnx_models(lines: Say, keys: Say, folder: Path) -> None:
    """Compiled, timed and described; what is compiled too."""
    path, out = folder / "small.onnx", folder / "compiled"
    keys("compile", lines("compile", path, "-o", out, "--threads", "1", "--schedule", "exact"))
    timed = ("bench", path, "--runs", "3", "--against", "", "--threads", "1")
    keys("bench", lines(*timed)[0])
    keys("bench-profile", lines(*timed, "--profile"))
    np.savez(folder / "feeds.npz", x=np.ones((2, 4), np.float32))
    keys("run-onnx", lines("run", path, "--input", folder / "feeds.npz", *LATENCY))
    keys("plan-onnx", lines("plan", path, "--threads", "1"))
    keys("inspect-onnx", lines("inspect", path))
    keys("inspect-compiled", lines("inspect", out))


def test_a_cluster_of_one(lines: Say, keys: Say, folder: Path) -> None:
    """The key, and what a primary plans and runs without workers."""
    key = folder / "key"
    keys("cluster key", lines("cluster", "key", key))
    model = small_model(folder)
    led = ("--listen", "127.0.0.1:0", "--key", key, "--wait", "0", "--threads", "1", "--partition", "equal")
    for verb, *more in (("plan", "--explain"), ("run",), ("bench", "--runs", "3")):
        tokens = ("--tokens", "8")
        printed = lines("cluster", verb, model, *tokens, *more, *led)
        keys(f"cluster {verb}", printed[0] if verb == "bench" else printed)


def test_a_worker_and_its_primary(lines: Say, keys: Say, folder: Path) -> None:
    """The worker's events as it says them, and the state of a cluster that it has joined."""
    key, model = folder / "members.key", small_model(folder)
    lines("cluster", "key", key)
    with (
        Cluster("127.0.0.1:0", key=key, threads=1, shares="equal", cache=folder / "cache") as cluster,
        workers(cluster.address, key, model, folder, "w", "--json") as joined,
    ):
        cluster.wait(1, PATIENCE_S)
        session = cluster.open(model)
        session(session.sample(8))
        asked = ("--primary", cluster.address.removeprefix("tcp://"), "--key", key)
        (status,) = lines("cluster", "status", *asked)
        said = [json.loads(line) for line in joined["w"].text().splitlines() if line.startswith("{")]
    assert status["members"]
    keys("cluster status", [status | {"faults": [], "problems": []}])
    keys("worker", said)


def test_a_node(lines: Say, keys: Say, folder: Path) -> None:
    """Its events, and what it says of its choice."""
    command = [sys.executable, "-c", MAIN, "node", _small_recurrent(folder), "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "PLIANT_CACHE": str(folder / "cache")}
    more = ("--threads", "1", "--settle", "1ms", "--json")
    with subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            serves = json.loads(process.stdout.readline())
            keys("route explain", lines("route", "explain", "--node", serves["url"], "--length", "3"))
            process.terminate()
            has_left = json.loads(process.stdout.readline())
        finally:
            process.kill()
    keys("node", [serves, has_left])


def test_every_verb_that_prints_json_is_guarded() -> None:
    """One that is added belongs into a test above."""
    takes_json = {name for name, command in verbs() if any("--json" in one.opts for one in command.params)}
    known = {path.stem.partition("-")[0].replace("_", " ") for path in (GOLDEN / "guards/json").iterdir()}
    assert takes_json == known | {"stretch"}
