"""`--memory` of verbs: what is bounded is told, and too little is an error that names the least."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from pliant.cli.app import app

RUN = ("run", "imdb-lstm", "--text", "a fine film", "--threads", "1", "--json")


def test_run_tells_the_bound_and_the_parts_within_it() -> None:
    """Machines read what is measured beside what was predicted."""
    done = CliRunner().invoke(app, [*RUN, "--memory", "8MB"])
    assert done.exit_code == 0, done.output
    memory = json.loads(done.stdout)["memory"]
    assert memory["budget_bytes"] == 8_000_000
    assert sum(part["measured_bytes"] for part in memory["parts"]) <= 8_000_000
    assert {"name", "predicted_bytes", "measured_bytes"} == set(memory["parts"][0])


def test_too_little_names_the_least_which_works() -> None:
    """To the byte: rounded down, what is named would be refused."""
    refused = CliRunner().invoke(app, [*RUN, "--memory", "1KB"])
    assert refused.exit_code != 0
    named = re.search(r"Give at least (\d+) bytes", f"{refused.output}{refused.exception}")
    assert named is not None, refused.output
    assert CliRunner().invoke(app, [*RUN, "--memory", named[1]]).exit_code == 0


def test_weights_of_an_onnx_model_are_kept_in_the_bits_that_fit(tmp_path: Path) -> None:
    """`--weights auto` is `weights="auto"`: fp32 where that fits, else fewer bits; a number is kept to."""
    matrix = numpy_helper.from_array(np.random.default_rng(0).standard_normal((256, 256)).astype("f4"), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 256]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [matrix])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "one.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((1, 256), np.float32))

    def weight_bytes(*words: str) -> int:
        run = ["run", str(tmp_path / "one.onnx"), "--input", str(tmp_path / "x.npz"), "--threads", "1"]
        done = CliRunner().invoke(app, [*run, "--json", *words])
        assert done.exit_code == 0, done.output
        weights, _ = json.loads(done.stdout)["memory"]["parts"]
        return int(weights["predicted_bytes"])

    fp32 = 256 * 256 * 4
    assert weight_bytes("--weights", "auto", "--memory", "1MB") == weight_bytes() >= fp32
    assert weight_bytes("--weights", "2") < fp32 / 8
    assert weight_bytes("--weights", "2") < weight_bytes("--weights", "auto", "--memory", "60KB") < 60_000
