"""`pliant compile` and `pliant bench` on small ONNX models."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import pliant
from pliant import system
from pliant.cli.app import app
from pliant.cli.compile import identifier
from tests.compiler.family_models import feeds_of, proto_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = relu(x @ w), its batch symbolic."""
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def run(*words: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command line."""
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


def test_a_compiled_directory_is_timed_alone(model: Path) -> None:
    """Its sizes are fixed and no other runtime reads it: both are said, not ignored."""
    out = str(model.with_name("out"))
    assert run("compile", str(model), "--dim", "batch=2", "--threads", "1", "-o", out)[0] == 0
    words = ("bench", out, "--threads", "1", "--runs", "3")
    status, printed, _ = run(*words, "--profile", "--json")
    assert status == 0
    assert [row["runtime"] for row in json.loads(printed)["runtimes"]] == ["pliant"]
    for more, said in ((("--against", "onnxruntime"), "onnxruntime cannot read it"),):
        status, _, error = run(*words, *more)
        assert status == 1
        assert said in error


def test_a_compiled_directory_answers_without_the_model(model: Path) -> None:
    """Compile, delete the model, load: as an application that ships the directory would."""
    out = model.with_name("out")
    status, printed, _ = run("compile", str(model), "--dim", "batch=2", "-o", str(out), "--json")
    assert status == 0
    assert json.loads(printed)["output"] == str(out)
    weights = numpy_helper.to_array(onnx.load(model).graph.initializer[0])
    model.unlink()
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(pliant.load(out, threads=1).run({"x": x})["y"], np.maximum(x @ weights, 0))


def test_the_table_names_kernels_and_memory(model: Path) -> None:
    """What a user reads before deciding."""
    status, printed, _ = run("compile", str(model), "--dim", "batch=2")
    assert status == 0
    for word in ("kernel", "arena", "weights"):
        assert word in printed


def test_an_open_dimension_is_named(model: Path) -> None:
    """A directory is for one shape; which number is missing is said."""
    status, _, said = run("compile", str(model))
    assert status == 1
    assert "batch" in said
    assert "--dim" in said


@pytest.mark.parametrize("dim", ["batch", "batch=x", "=3", "height=2"])
def test_a_wrong_dimension_is_refused(model: Path, dim: str) -> None:
    """No guessing at what was meant."""
    status, _, said = run("compile", str(model), "--dim", dim)
    assert status == 1
    assert dim.split("=")[0] in said


def test_c_for_another_cpu_is_written_with_or_without_a_compiler(model: Path) -> None:
    """Objects and sources are there in any case; linking needs a compiler for Arm."""
    out = model.with_name("c")
    status, _, said = run(
        "compile", str(model), "--dim", "batch=2", "-o", str(out), "--emit", "c", "--target", "aarch64"
    )
    assert status == 0, said
    assert {"small.c", "small.h", "small.map", "CMakeLists.txt", "example.c"} <= {
        p.name for p in out.iterdir()
    }


@pytest.mark.parametrize("name", ["int", "entry", "processor", "timex", "sem", "signal", "example"])
def test_a_model_may_have_any_name(name: str, model: Path) -> None:
    """A word of C; a type of the library's source, its header; a type, a function, a header of the system; a
    target of its CMake file.
    """
    if shutil.which("cc") is None:
        pytest.skip("no cc here")
    path, out = model.rename(model.with_name(f"{name}.onnx")), model.with_name("c")
    status, printed, said = run(
        "compile", str(path), "--dim", "batch=2", "-o", str(out), "--emit", "c", "--json"
    )
    assert status == 0, said
    assert json.loads(printed)["library"] == str(out / f"libmodel_{name}.so")


@pytest.mark.parametrize(("compiler", "target"), [("cc", "native"), ("aarch64-linux-gnu-gcc", "aarch64")])
def test_no_model_has_the_name_of_a_type_of_the_system(compiler: str, target: str, model: Path) -> None:
    """Neither of those that the headers of this system have where the library's source includes them."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    out = model.with_name("c")
    words = ("compile", str(model), "--dim", "batch=2", "-o", str(out), "--emit", "c", "--target", target)
    assert run(*words)[0] == 0
    command = [compiler, "-std=c11", "-E", "-P", "small.c"]
    source = subprocess.run(command, cwd=out, check=True, capture_output=True, text=True).stdout
    tags = set(re.findall(r"\b(?:struct|union|enum) ([a-z]\w*)", source)) - {"small", "small_tensor"}
    assert {"stat", "timespec"} <= tags
    assert [tag for tag in sorted(tags) if identifier(Path(tag)) == tag] == []


@pytest.mark.parametrize("target", ["native", "aarch64", "aarch64-dot"])
def test_a_small_bert_answers_from_c_as_from_python(target: str, tmp_path: Path) -> None:
    """An ONNX file to a library for this CPU, or for a board made here, run without Python."""
    is_arm = target != "native"
    tools = ("aarch64-linux-gnu-gcc", "qemu-aarch64") if is_arm else ("cc",)
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")
    path, out = tmp_path / "bert.onnx", tmp_path / "c"
    onnx.save(proto_of("bert"), path)
    words = ("compile", str(path), "-o", str(out), "--emit", "c", "--target", target, "--threads", "2")
    status, printed, said = run(*words, "--json")
    assert status == 0, said
    assert json.loads(printed)["library"] == str(out / "libbert.so")
    link = ["-std=gnu11", "example.c", "-L.", "-lbert", "-Wl,-rpath,$ORIGIN", "-o", "example"]
    subprocess.run([tools[0], *link], cwd=out, check=True)
    feeds = feeds_of("bert")
    for name, array in feeds.items():
        (out / f"{name}.bin").write_bytes(array.tobytes())
    runner = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu", "max"] if is_arm else []
    command = [*runner, "./example", "-t", "2", "bert.safetensors", *(f"{name}.bin" for name in feeds)]
    answer = subprocess.run(command, cwd=out, check=True, capture_output=True).stdout
    (expected,) = pliant.compile(path, threads=1).run(feeds).values()
    np.testing.assert_allclose(
        np.frombuffer(answer, np.float32).reshape(expected.shape), expected, rtol=1e-4, atol=1e-4
    )


def test_the_bench_compares_answers_and_times(model: Path) -> None:
    """Against onnxruntime on the same feeds; no claim about who is faster."""
    pytest.importorskip("onnxruntime")
    status, printed, said = run("bench", str(model), "--dim", "batch=2", "--runs", "3", "--json")
    assert status == 0, said
    ours, theirs = json.loads(printed)
    assert (ours["runtime"], theirs["runtime"]) == ("pliant", "onnxruntime")
    assert theirs["difference"] < 1e-5


def test_an_unknown_runtime_is_named(model: Path) -> None:
    """With the list of those that can be asked for."""
    status, _, said = run("bench", str(model), "--dim", "batch=2", "--against", "abacus")
    assert status == 1
    assert "abacus" in said
    assert "onnxruntime" in said


@pytest.mark.parametrize(
    ("schedule", "target", "said"),
    [
        ("paper", "aarch64", True),
        ("static", "aarch64", False),
        ("paper", "native", False),
    ],
)
def test_a_schedule_for_another_cpu_says_where_it_was_measured(
    model: Path, schedule: str, target: str, said: bool
) -> None:
    """Kernels of the target cannot be timed here."""
    if target == "aarch64" and system.machine() == "aarch64":
        pytest.skip("aarch64 is no other CPU here")
    words = ("compile", str(model), "--dim", "batch=2", "--threads", "1")
    options = ("--schedule", schedule, "--target", target)
    assert json.loads(run(*words, *options, "--json")[1])["measured_elsewhere"] == said
    assert ("not on its target" in run(*words, *options)[1]) == said


def test_a_schedule_says_what_it_chose_from(model: Path) -> None:
    """As a table and as JSON: edges, candidates, conflicts, reorders and the gain it promises."""
    words = ("compile", str(model), "--dim", "batch=2", "--threads", "1", "--schedule", "exact")
    status, printed, _ = run(*words, "--json")
    assert status == 0
    said = json.loads(printed)["schedule"]
    assert (said["kind"], said["edges"], said["reorders"]) == ("exact", 2, 0)
    assert said["predicted_s"] <= said["default_s"]
    status, printed, _ = run(*words)
    assert status == 0
    for word in ("candidate layouts", "conflicts", "reorders inserted", "predicted gain"):
        assert word in printed


def test_the_bench_chooses_sizes_that_are_not_given(model: Path) -> None:
    """Plans and profiles of the same file did, where the bench wanted every dimension."""
    status, printed, said = run("bench", str(model), "--runs", "3", "--against", "", "--json")
    assert (status, said) == (0, "")
    assert [row["runtime"] for row in json.loads(printed)] == ["pliant"]


def test_the_bench_says_where_the_time_goes(model: Path) -> None:
    """One row a step with the node it came from, as a table, as JSON and as a trace."""
    words = ("bench", str(model), "--dim", "batch=2", "--runs", "3", "--against", "", "--profile")
    status, printed, said = run(*words)
    assert status == 0, said
    assert "GFLOP/s" in printed
    assert "MatMul+Relu" in printed
    trace = model.with_name("trace.json")
    status, printed, said = run(*words, "--trace", str(trace), "--json")
    assert status == 0, said
    steps = json.loads(printed)["profile"]["steps"]
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert names == ["graph", *(step["label"] for step in steps)], "the program's step, and its kernel calls"


def test_weights_in_codes(tmp_path: Path) -> None:
    """The directory runs on them; bits that make no sense, or no product to code, are said."""
    weights = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32) / 8
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 96])],
        [numpy_helper.from_array(weights, "w")],
    )
    path, out = tmp_path / "one.onnx", tmp_path / "out"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    words = ["--weights", "6", "--compute", "int8", "-o", str(out), "--json"]
    status, printed, _ = run("compile", str(path), *words)
    assert status == 0
    assert json.loads(printed)["kernels"] == {"gemm_int8": 1, "round_rows": 1}
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    np.testing.assert_allclose(pliant.load(out, threads=1).run({"x": x})["y"], x @ weights, atol=0.3)
    for words, said in (
        (["--weights", "7"], "no weights of 7 bits here"),
        (["--weights", "half"], "'half': give fp32, 8 or 1 to 6 bits, or auto"),
        (["--compute", "int8"], "give weights=8 as well"),
    ):
        status, _, error = run("compile", str(path), *words)
        assert status == 1
        assert said in " ".join(error.split())


def test_a_model_without_products_to_code_is_said_so(model: Path) -> None:
    """Twelve weights have no use for 64 centroids."""
    status, _, error = run("compile", str(model), "--dim", "batch=2", "--weights", "4")
    assert status != 0
    assert "no product" in " ".join(error.split())


def test_bench_takes_the_same_weights(model: Path) -> None:
    """What is shipped is what is timed; here the model is too small for codes."""
    status, _, error = run("bench", str(model), "--dim", "batch=2", "--weights", "4")
    assert status != 0
    assert "no product" in " ".join(error.split())


def test_the_bench_pads_to_a_bucket(model: Path) -> None:
    """Fed two rows, run as four; the answer is compared with onnxruntime's to two."""
    pytest.importorskip("onnxruntime")
    words = ("bench", str(model), "--dim", "batch=2", "--runs", "3", "--json")
    status, printed, said = run(*words, "--bucket", "batch=4,8")
    assert status == 0, said
    assert json.loads(printed)[1]["difference"] < 1e-5
    status, _, said = run(*words, "--bucket", "batch=1")
    assert status == 1
    assert "largest bucket is 1" in said
    status, _, said = run(*words, "--bucket", "batch=some")
    assert status == 1
    assert "--bucket 'batch=some'" in said
