"""The wheel: what is in it, and what each installation of it answers, outside the checkout.

Each environment holds what the wheel declares for one extra alone, so an import that only the developers'
environment satisfies fails here. `train` and `bench` bring torch.
"""

import json
import signal
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from tests.cluster.processes import MAIN
from tests.packaging.environments import ROOT, Environment, build_wheel, install, metadata, with_extra

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = tuple(extra for extra in PROJECT["optional-dependencies"] if extra not in ("all", "dev"))
"""For users, in pyproject's order."""
PLIANT = ("-c", MAIN)
TARGET = ("--latency", "10s", "--preload", "1MB")
TEXT = ("--text", "a fine film")

Install = Callable[[str], Environment]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """pliant without any extra, and an empty cache."""
    return install(wheel, tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def installed(base: Environment, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """`installed(extra)` is a new environment with that extra alone, and the cache of `base`."""
    return lambda extra: with_extra(base, extra, tmp_path_factory.mktemp(f"with-{extra}"))


@pytest.fixture(scope="module")
def onnx_model(base: Environment) -> Path:
    """A model of one addition, written by the installation itself: onnx is no extra."""
    path = base.folder / "sum.onnx"
    base.answer("-c", _WRITE_SUM, path)
    return path


_WRITE_SUM = """
import sys, onnx
from onnx import TensorProto, helper
ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xyz"]
graph = helper.make_graph([helper.make_node("Add", ["x", "y"], ["z"])], "sum", ports[:2], ports[2:])
opsets = [helper.make_opsetid("", 17)]
onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), sys.argv[1])
"""
_ANSWERS = """
import sys
from pathlib import Path
import pliant
assert Path(pliant.__file__).is_relative_to(sys.prefix), pliant.__file__
with pliant.open("imdb-lstm") as model:
    print(model("a fine film").label)
session = pliant.compile(sys.argv[1])
print(*session.run({"x": [1.0, 2, 3, 4], "y": [1.0, 1, 1, 1]})["z"])
"""


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """Data that is not declared is missing at users; tests and research have no place there."""
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    about = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    held = names - about
    assert any(name.endswith("licenses/LICENSE") for name in about)
    package = ROOT / "src" / "pliant"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert held == {path.relative_to(package.parent).as_posix() for path in files}
    assert {"pliant/py.typed", "pliant/models/assets/sst2/model.safetensors"} < held


def test_the_wheel_declares_what_pyproject_does(wheel: Path) -> None:
    """`all` and the page of the index are only as good as the metadata."""
    own = metadata(wheel)
    assert (own.metadata["Name"], own.version) == (PROJECT["name"], PROJECT["version"])
    assert set(own.metadata.get_all("Provides-Extra") or ()) == {*EXTRAS, "all", "dev"}
    assert own.metadata["Requires-Python"] == PROJECT["requires-python"]
    (command,) = own.entry_points
    assert (command.name, command.value) == ("pliant", PROJECT["scripts"]["pliant"])


def test_all_names_every_extra_for_users() -> None:
    """An extra that is added must not be left out of `all`."""
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert everything == f"pliant[{','.join(EXTRAS)}]"


def test_without_extras_every_kind_of_model_answers(base: Environment, onnx_model: Path) -> None:
    """From an empty cache: the shipped text models, and a model of ONNX."""
    said = subprocess.run(
        [base.python.with_name("pliant"), "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"pliant {PROJECT['version']}\n"
    assert base.answer("-c", _ANSWERS, onnx_model).splitlines() == ["positive", "2.0 3.0 4.0 5.0"]
    reply = json.loads(base.answer(*PLIANT, "run", "sst2", *TARGET, *TEXT, "--json"))
    assert reply["label"] == "positive"


def test_without_extras_a_model_compiles_to_a_directory_and_to_c(base: Environment, onnx_model: Path) -> None:
    """The sources that a program is built from are data of the package."""
    base.answer(*PLIANT, "compile", onnx_model, "-o", "loads")
    rows = json.loads(base.answer(*PLIANT, "bench", "loads", "--against", "", "--runs", "3", "--json"))
    assert [row["runtime"] for row in rows] == ["pliant"]
    base.answer(*PLIANT, "compile", onnx_model, "-o", "links", "--emit", "c")
    assert {"CMakeLists.txt", "example.c"} < {path.name for path in (base.folder / "links").iterdir()}


_REFUSALS = """
import json, sys
from typer.testing import CliRunner
from pliant.cli.app import app
said = [CliRunner().invoke(app, words) for words in json.loads(sys.argv[1])]
print(json.dumps([[done.exit_code, done.stderr] for done in said]))
"""
_VERBS = {
    "plot": [["plan", "sst2", *TARGET, "--plot", "plan.svg"]],
    "train": [["stretch", "sst2", "--train", "t.tsv", "--dev", "t.tsv", "-o", "out"]],
    "cluster": [["cluster", "key"], ["worker", "--join", "127.0.0.1:1"]],
    "node": [["node", "imdb-lstm"], ["route", "explain", "--length", "4"]],
    "bench": [["bench", "sum.onnx"]],
}


def test_without_extras_each_verb_names_the_extra_that_it_needs(base: Environment, onnx_model: Path) -> None:
    """In one line, with status 1."""
    asked = [(words, extra) for extra, verbs in _VERBS.items() for words in verbs]
    found = json.loads(base.answer("-c", _REFUSALS, json.dumps([words for words, _ in asked])))
    for (words, extra), (status, said) in zip(asked, found, strict=True):
        assert status == 1, words
        assert f"pip install 'pliant[{extra}]'" in said, words
        assert len(said.strip().splitlines()) == 1, words


def test_train_alone_makes_a_model_elastic(installed: Install, tiny_model: Callable[..., Path]) -> None:
    """Torch, and nothing to draw with: a picture is refused before the training."""
    with_train = installed("train")
    (with_train.folder / "t.tsv").write_text("sentence\tlabel\n" + "a good film\t1\nthe plot is bad\t0\n" * 4)
    model = tiny_model("bert", widths=(2, 4))
    asked = ("stretch", model, "--train", "t.tsv", "--dev", "t.tsv", "-o", "out", "--widths", "2,4",
             "--tune-epochs", "1", "--distil-epochs", "1", "--final-epochs", "0")  # fmt: skip
    assert "pip install 'pliant[plot]'" in with_train.run(*PLIANT, *asked, "--plot", "grid.svg").stderr
    made = json.loads(with_train.answer(*PLIANT, *asked, "--json"))
    assert made["dev"]["widths"] == [2, 4]


def test_plot_alone_draws_a_plan(installed: Install) -> None:
    """Matplotlib's own requirements are part of the extra."""
    with_plot = installed("plot")
    with_plot.answer(*PLIANT, "plan", "sst2", *TARGET, "--plot", "plan.svg")
    assert "<svg" in (with_plot.folder / "plan.svg").read_text()


def test_hub_alone_opens_a_model_that_was_downloaded(installed: Install) -> None:
    """By its id, from the cache of the hub's own library: there is no network."""
    with_hub = installed("hub")
    folder = with_hub.folder / "hf" / "hub" / "models--owner--film"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots").mkdir()
    (folder / "snapshots" / ("0" * 40)).symlink_to(
        ROOT / "src" / "pliant" / "models" / "assets" / "imdb-lstm"
    )
    reply = json.loads(with_hub.answer(*PLIANT, "run", "owner/film", *TEXT, "--latency", "10s", "--json"))
    assert reply["label"] == "positive"


_CLUSTER = """
import pliant, subprocess, sys
with pliant.Cluster("127.0.0.1:0", key="key", shares="equal", threads=1) as cluster:
    worker = subprocess.Popen(
        [sys.executable, *sys.argv[1:], "worker", "--join", cluster.address, "--key", "key",
         "--name", "w", "--threads", "1", "--silence", "15s"],
    )
    try:
        cluster.wait(1, 120.0)
        reply = cluster.open("sst2")("a fine film")
        print(reply.label, *sorted({*reply.details.partitions[-1].participants} - {cluster.name}))
    finally:
        worker.terminate()
        worker.wait()
"""


def test_cluster_alone_answers_over_two_devices(installed: Install) -> None:
    """With a worker beside it; the engine of torch and multicast DNS are other extras."""
    with_cluster = installed("cluster")
    with_cluster.answer(*PLIANT, "cluster", "key", "key")
    assert with_cluster.answer("-c", _CLUSTER, *PLIANT).splitlines()[-1] == "positive w"
    lost = with_cluster.run(*PLIANT, "worker", "--discover", "--key", "key")
    assert "pip install 'pliant[discover]'" in lost.stderr
    lost = with_cluster.run(*PLIANT, "worker", "--join", "127.0.0.1:1", "--key", "key", "--engine", "gloo")
    assert "pip install 'pliant[train]'" in lost.stderr


def test_discover_alone_announces_a_cluster(installed: Install) -> None:
    """It brings what a cluster needs as well."""
    script = (
        "import pliant; from pliant.cluster.net.key import make_key\n"
        "from pathlib import Path; make_key(Path('key'))\n"
        "with pliant.Cluster('127.0.0.1:0', key='key', announce=True) as cluster: print(cluster.address)"
    )
    assert installed("discover").answer("-c", script).startswith("tcp://127.0.0.1:")


def test_node_alone_answers_over_http(installed: Install) -> None:
    """As another program asks it, and without what a cluster needs."""
    with_node = installed("node")
    command = [with_node.python, *PLIANT, "node", "imdb-lstm", "--listen", "127.0.0.1:0", "--settle", "1ms"]
    process = subprocess.Popen(
        [*command, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=with_node.folder,
        env=with_node.variables(),
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a lovely film"]}
        path = f"{url}/v2/models/imdb-lstm/infer"
        answer = httpx.post(path, json={"inputs": [tensor]}, timeout=120).json()
        assert answer["outputs"][1]["data"] == ["positive"]
        assert "local" in with_node.answer(*PLIANT, "route", "explain", "--node", url, "--length", 4)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()
    lost = with_node.run(*PLIANT, "node", "sst2", "--cluster", "127.0.0.1:0")
    assert "pip install 'pliant[cluster]'" in lost.stderr


def test_bench_alone_compares_with_other_runtimes(installed: Install, onnx_model: Path) -> None:
    """The peers that the verb names by default and beside it."""
    asked = ("bench", onnx_model, "--against", "onnxruntime,openvino", "--runs", "3", "--json")
    rows = json.loads(installed("bench").answer(*PLIANT, *asked))
    assert [(row["runtime"], row["difference"]) for row in rows[1:]] == [("onnxruntime", 0), ("openvino", 0)]
