"""What the README shows is what happens: its Python runs, its verbs exist, its links lead somewhere."""

import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from pliant.cli import main as _main
from pliant.cli.app import app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CLUSTER = (ROOT / "docs" / "cluster.md").read_text()
NODES = (ROOT / "docs" / "nodes.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thing a user tries, on the model that ships; the target is loose for a busy machine."""
    monkeypatch.setenv("PLIANT_CACHE", str(tmp_path))
    code, _ = EXAMPLES
    names: dict[str, object] = {}
    exec(code.replace("20ms", "2s").replace("10ms", "1s"), names)
    assert names["reply"].label == "positive"  # type: ignore[attr-defined]


def test_the_onnx_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user of onnxruntime would paste it, on a model with these two inputs."""
    _, code = EXAMPLES
    ports = [
        helper.make_tensor_value_info(x, TensorProto.INT64, ["batch", "length"]) for x in ("input_ids", "y")
    ]
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "length"])
    node = helper.make_node("Mul", ["input_ids", "attention_mask"], ["y"])
    graph = helper.make_graph([node], "masked", [ports[0], mask], [ports[1]])
    monkeypatch.chdir(tmp_path)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "model.onnx"
    )
    names: dict[str, object] = {"ids": np.array([[5, 6]]), "mask": np.array([[1, 0]])}
    exec(code, names)
    assert names["outputs"]["y"].tolist() == [[5, 0]]  # type: ignore[index]


def test_every_verb_shown_exists() -> None:
    """A verb renamed must be renamed here too."""
    shown = set(re.findall(r"`?pliant ([a-z]+)", README)) - {"says"}
    listed = CliRunner().invoke(app, ["--help"]).output
    assert callable(_main)
    for verb in shown & {
        "pack",
        "profile",
        "plan",
        "run",
        "eval",
        "stretch",
        "inspect",
        "demo",
        "compile",
        "bench",
    }:
        assert verb in listed
    assert {"pack", "profile", "plan", "run", "eval", "stretch", "inspect"} <= shown


def test_every_option_shown_is_known() -> None:
    """Options in the table of verbs and in the first screen are real ones."""
    for line in re.findall(r"pliant ([a-z]+ [^`\n]*--[^`\n]*)", README + CLUSTER + NODES):
        words = shlex.split(line.replace("…", "x"))
        verb = words[: 2 if words[0] in ("cluster", "route") else 1]
        text = CliRunner().invoke(app, [*verb, "--help"], env={"COLUMNS": "200"}).output
        for option in [w for w in words if w.startswith("--")]:
            assert option in text, f"pliant {' '.join(verb)} has no {option}"


def test_every_link_into_the_repository_leads_somewhere() -> None:
    """A reader who clicks must not find nothing."""
    for target in re.findall(r"\]\(([^)h#][^)]*)\)", README):
        assert (ROOT / target).exists(), target
    for target in re.findall(r"\]\(([^)h#][^)]*)\)", CLUSTER + NODES):
        assert (ROOT / "docs" / target).exists(), target


def test_the_clusters_verbs_are_all_on_its_page() -> None:
    """A verb added must be explained."""
    listed = CliRunner().invoke(app, ["cluster", "--help"], env={"COLUMNS": "200"}).output
    for verb in ("key", "status", "plan", "run", "bench"):
        assert verb in listed
        assert f"`pliant cluster {verb}" in CLUSTER
