"""Models whose weights are kept in codes: any shape, on disk and as C, and what makes no sense is refused."""

import json
import shutil
import subprocess
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import pliant
from pliant.cli.app import app
from pliant.compiler.aot.ahead_of_time import write_c
from pliant.compiler.aot.compiled_directory import save
from pliant.errors import InputError
from pliant.store.coding.matrix import code_matrix
from tests.models.onnx_models import parse
from tests.rows import FORMS
from tests.store.coding.test_matrix import meant, read, weights

SIZES = ((64, 200), (200, 90), (90, 70))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three layers, GELU's relative tanh between; batch and rows symbolic; one table is looked up."""
    nodes, known, x = [helper.make_node("Gather", ["table", "ids"], ["h0"])], [], "h0"
    known.append(numpy_helper.from_array(weights(50, 64, scale=1.0), "table"))
    for i, (rows, columns) in enumerate(SIZES):
        known.append(numpy_helper.from_array(weights(rows, columns, seed=i, scale=rows**-0.5), f"w{i}"))
        known.append(numpy_helper.from_array(np.linspace(-1, 1, columns, dtype=np.float32), f"b{i}"))
        nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"p{i}"]))
        nodes.append(helper.make_node("Add", [f"p{i}", f"b{i}"], [f"a{i}"]))
        if i < len(SIZES) - 1:
            nodes.append(helper.make_node("Tanh", [f"a{i}"], [f"h{i + 1}"]))
            x = f"h{i + 1}"
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch", "n"])],
        [helper.make_tensor_value_info("a2", onnx.TensorProto.FLOAT, ["batch", "n", 70])],
        known,
    )
    path = tmp_path / "layers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def ids(*shape: int) -> dict[str, np.ndarray]:
    return {"ids": np.random.default_rng(0).integers(0, 50, shape)}


def reference(
    model: Path, feeds: dict[str, np.ndarray], change: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """The model in float64, its weights changed."""
    known = {t.name: numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}
    h: np.ndarray = known["table"][feeds["ids"]].astype(np.float64)
    for i in range(len(SIZES)):
        h = h @ change(known[f"w{i}"]) + known[f"b{i}"]
        h = np.tanh(h) if i < len(SIZES) - 1 else h
    return h


@pytest.mark.parametrize("bits", [1, 3, 6])
def test_every_shape_runs_on_the_same_codes(model: Path, bits: int) -> None:
    """Dynamic shapes: equal to float64 on the quantizer's own weights, which are held once for all."""
    session = pliant.compile(model, threads=2, weights=bits)
    held = []
    for shape in ((1, 1), (2, 7), (3, 40)):
        y = session.run(ids(*shape))["a2"]
        wanted = reference(model, ids(*shape), lambda w: meant(w, bits))
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)
        held.append(session.weight_bytes)
    constants = session.image(ids(3, 40)).constants
    planes = [array.nbytes for name, array in constants.items() if name.endswith("|planes")]
    assert len(planes) == 3
    assert max(held) - held[0] < sum(planes)


@pytest.mark.parametrize("opened", ["open", "compile"])
def test_codes_follow_the_examples(model: Path, opened: str) -> None:
    """The weights are those that `code_matrix` makes for the inputs of each product on the examples, in every
    shape, up to ties that float32 rounds in another way: a small part of the codes' own error.
    """
    examples = [ids(3, 40), {"ids": np.arange(50).reshape(2, 25)}]
    first, second = map(partial(_inputs, model), examples)
    moments = {a.shape[1]: a.T @ a + b.T @ b for a, b in zip(first, second, strict=True)}

    def coded(w: np.ndarray) -> np.ndarray:
        return read(code_matrix(w, 3, moments[len(w)].astype(np.float32)), w.shape)

    session = getattr(pliant, opened)(model, threads=2, weights=3, examples=examples)
    for shape in ((2, 7), (1, 1)):
        y = session.run(ids(*shape))["a2"]
        wanted, exact = (reference(model, ids(*shape), change) for change in (coded, lambda w: w))
        assert np.abs(y - wanted).max() < 0.1 * np.abs(wanted - exact).max()


def _inputs(model: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The rows that each matrix is multiplied with, by `reference` of fewer layers."""
    known = {t.name: numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}
    rows = [known["table"][feeds["ids"]].astype(np.float64).reshape(-1, SIZES[0][0])]
    for i in range(len(SIZES) - 1):
        rows.append(np.tanh(rows[-1] @ known[f"w{i}"] + known[f"b{i}"]))
    return rows


@pytest.mark.parametrize("compute", ["fp32", "int8"])
def test_examples_make_answers_better(model: Path, compute: str) -> None:
    """On other inputs of the same kind, from 4 bits: the columns of a table of 50 rows are correlated. The
    kernels and the size of what they read stay the same.
    """
    feeds = {"ids": np.random.default_rng(1).integers(0, 50, (2, 30))}
    exact = reference(model, feeds, lambda w: w)

    def measured(examples: list[dict[str, np.ndarray]]) -> tuple[float, list[str], int]:
        session = pliant.compile(model, threads=2, weights=4, compute=compute, examples=examples)
        error = float(np.square(session.run(feeds)["a2"] - exact).mean() ** 0.5)
        return error, [call.kernel.name for call in session.image(feeds).calls], session.weight_bytes

    error, *cost = measured([ids(3, 40)])
    plain, *plain_cost = measured([])
    assert error < 0.7 * plain
    assert cost == plain_cost


def test_the_command_line_takes_files_of_examples(model: Path, tmp_path: Path) -> None:
    """The compiled directory answers as a session with the same examples, from both kinds of files."""
    examples = [ids(2, 7), {"ids": np.arange(14).reshape(2, 7)}]
    np.savez(tmp_path / "first.npz", **examples[0])
    (tmp_path / "second.json").write_text(json.dumps({"ids": examples[1]["ids"].tolist()}))
    words = ["compile", str(model), "--dim", "batch=2", "--dim", "n=7", "--weights", "4", "--threads", "2"]
    for file in ("first.npz", "second.json"):
        words += ["--examples", str(tmp_path / file)]
    done = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.stderr
    dims = {"batch": 2, "n": 7}
    session = pliant.compile(model, threads=2, weights=4, examples=examples, dims=dims)
    answer = pliant.load(tmp_path / "out", threads=2).run(ids(2, 7))["a2"]
    np.testing.assert_array_equal(answer, session.run(ids(2, 7))["a2"])


def test_examples_that_do_not_fit_are_refused(model: Path) -> None:
    """When the session is opened, not by its first run; the message names the example, not a request."""
    with pytest.raises(InputError, match=r"example 0 .*'ids' is missing; there is no input 'x'"):
        pliant.compile(model, weights=4, examples=[{"x": np.zeros(3)}])
    wrong = {"ids": np.zeros(3, np.int64)}
    for options in ({"weights": 4}, {"compute": "auto"}):
        with pytest.raises(InputError, match=r"example 1 does not fit the model: input 'ids' is int64\[3\]"):
            pliant.compile(model, threads=1, examples=[ids(1, 2), wrong], **options)
    with pytest.raises(InputError, match=r"example 0 .*only casts that lose nothing"):
        pliant.open(model, weights=4, examples=[{"ids": np.zeros((1, 3))}])


@pytest.mark.parametrize("examples", [ids(1, 3), np.zeros((1, 3)), iter([ids(1, 3)]), "ids"])
def test_examples_that_are_no_list_are_refused(model: Path, examples: Any) -> None:
    """One example without its list was read as the names of its inputs."""
    for options in ({"weights": 4}, {"compute": "auto"}, {}):
        with pytest.raises(InputError, match=r"must be a list of feeds, .*: give examples=\[feeds, \.\.\.\]"):
            pliant.compile(model, examples=examples, **options)


def test_examples_are_freed_when_the_weights_are_coded(model: Path) -> None:
    """`memory` does not count them; a session that is closed before has no use for them either."""
    for is_run in (True, False):
        examples = [ids(2, 7)]
        kept = weakref.ref(examples[0]["ids"])
        session = pliant.compile(model, threads=1, weights=4, examples=examples)
        del examples
        assert kept() is not None
        session.run(ids(1, 3)) if is_run else session.close()
        assert kept() is None


def test_the_first_shape_does_not_change_the_codes() -> None:
    """A product with the first S rows of w, whose matrix another S does not have: that of the later shape is
    coded for the examples too, which are no longer in memory.
    """
    rng = np.random.default_rng(0)
    w = weights(128, 64)
    model = parse(
        "m (float[B, S] x) => (float[B, 64] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}>"
        " { s = Shape(x) n = Slice(s, one, two) rows = Slice(w, zero, n) y = MatMul(x, rows) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    mixed = (rng.standard_normal((96, 8)) @ rng.standard_normal((8, 96))).astype(np.float32)
    short, long = {"x": mixed[:, :64]}, {"x": mixed}
    answers = {}
    for order in ((short, long), (long, short)):
        session = pliant.compile(model, threads=1, weights=3, examples=[short, long, short])
        made = {feeds["x"].shape: session.run(feeds)["y"] for feeds in order}
        for shape, y in made.items():
            np.testing.assert_array_equal(answers.setdefault(shape, y), y)
    plain = pliant.compile(model, threads=1, weights=3)
    for feeds in (short, long):
        x = feeds["x"].astype(np.float64)
        exact = x @ w[: x.shape[1]]
        errors = [np.square(y - exact).mean() for y in (answers[x.shape], plain.run(feeds)["y"])]
        assert errors[0] < 0.5 * errors[1]


def test_the_plan_says_that_examples_had_no_effect(model: Path) -> None:
    """Where "auto" becomes fp32 or bytes, nothing is coded; that examples were given is not hidden."""
    with pliant.compile(model, threads=1, weights=8) as session:
        session.run(ids(2, 7))
        in_bytes = session.memory.predicted_bytes
    for memory, kept in ((None, "fp32"), (in_bytes + 8, "8 bits")):
        options = {"weights": "auto", "memory": memory, "threads": 1}
        session = pliant.compile(model, examples=[ids(2, 7)], **options)
        session.run(ids(2, 7))
        said = f"examples: not used, as weights='auto' became {kept}"
        assert said in str(session.plan)
        plain = pliant.compile(model, **options)
        plain.run(ids(2, 7))
        assert "examples" not in str(plain.plan)
    session = pliant.compile(model, threads=1, weights=4, examples=[ids(2, 7)])
    session.run(ids(2, 7))
    assert "examples" not in str(session.plan)


@pytest.mark.parametrize(("bits", "most"), [(6, 0.05), (8, 0.02)])
def test_int8_is_near_fp32(model: Path, bits: int, most: float) -> None:
    """Six bits and 64 or more steps: a few per cent of what the outputs vary by; bytes less."""
    exact = reference(model, ids(2, 7), lambda w: w)
    for compute in ("fp32", "int8"):
        y = pliant.compile(model, threads=2, weights=bits, compute=compute).run(ids(2, 7))["a2"]
        assert np.sqrt(((y - exact) ** 2).mean()) < most * exact.std()


def test_bytes_serve_every_shape(model: Path) -> None:
    """Dynamic shapes: the weights are rounded and held once, at a quarter of their size."""
    session = pliant.compile(model, threads=2, weights=8, compute="int8")
    held = []
    for shape in ((1, 1), (2, 7), (3, 40)):
        y = session.run(ids(*shape))["a2"]
        exact = reference(model, ids(*shape), lambda w: w)
        assert np.sqrt(((y - exact) ** 2).mean()) < 0.02 * exact.std()
        held.append(session.weight_bytes)
    resident = {x: p.n_bytes for x, p in session.image(ids(3, 40)).packed.items() if x.endswith("|resident")}
    assert len(resident) == 3
    assert sum(resident.values()) < 0.45 * 4 * sum(rows * columns for rows, columns in SIZES)
    assert max(held) - held[0] < min(resident.values())


def test_bytes_are_not_multiplied_in_bfloat16(model: Path) -> None:
    """The message says what takes bytes."""
    with pytest.raises(InputError, match="not 8; give compute='int8' or 'fp32'"):
        pliant.compile(model, weights=8, compute="bf16")


@pytest.mark.parametrize(("bits", "compute"), [*((6, x) for x in FORMS), (8, "fp32"), (8, "int8")])
def test_a_directory_holds_the_codes(model: Path, tmp_path: Path, bits: int, compute: Any) -> None:
    """Smaller than the weights, and bit for bit what the session answers."""
    session = pliant.compile(model, threads=1, weights=bits, compute=compute)
    save(session.image(ids(2, 7)), tmp_path / "saved")
    loaded = pliant.load(tmp_path / "saved", threads=1)
    np.testing.assert_array_equal(loaded.run(ids(2, 7))["a2"], session.run(ids(2, 7))["a2"])
    products = 4 * sum(rows * columns for rows, columns in SIZES)
    table = 4 * 50 * 64
    assert (tmp_path / "saved" / "weights.safetensors").stat().st_size < 0.45 * products + table


@pytest.mark.parametrize(("bits", "compute"), [*((5, x) for x in FORMS), (8, "fp32"), (8, "int8")])
def test_the_c_library_holds_the_codes(model: Path, tmp_path: Path, bits: int, compute: Any) -> None:
    """No Python at run time, the same bits."""
    if shutil.which("cc") is None:
        pytest.skip("no cc here")
    session = pliant.compile(model, threads=2, weights=bits, compute=compute)
    out = tmp_path / "c"
    emitted = write_c(session.image(ids(1, 9)), "layers", out)
    assert emitted.library is not None, emitted.reason
    command = ["cc", "-std=gnu11", "example.c", "-L.", "-llayers", "-Wl,-rpath,$ORIGIN", "-o", "example"]
    subprocess.run(command, cwd=out, check=True)
    (out / "ids.bin").write_bytes(ids(1, 9)["ids"].tobytes())
    done = subprocess.run(
        ["./example", "layers.safetensors", "ids.bin"], cwd=out, check=True, capture_output=True
    )
    answer = np.frombuffer(done.stdout, np.float32).reshape(1, 9, 70)
    np.testing.assert_array_equal(answer, session.run(ids(1, 9))["a2"])


def test_schedules_leave_coded_products_as_they_are(model: Path) -> None:
    """Layouts are chosen around them."""
    y = pliant.compile(model, threads=1, weights=6, schedule="none").run(ids(1, 5))["a2"]
    wanted = reference(model, ids(1, 5), lambda w: meant(w, 6))
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weights", [0, 7, -1, True, "6", "fp16", 2.5])
def test_bits_that_do_not_exist_are_refused(model: Path, weights: Any) -> None:
    """The message names the value and the limits."""
    with pytest.raises(InputError, match=r"no weights of .* bits here; give 'fp32', 'auto', 1 to 6, or 8"):
        pliant.compile(model, weights=weights)


def test_int8_needs_coded_weights(model: Path) -> None:
    """Float32 weights are not quietly quantized: the user says how many bits."""
    with pytest.raises(InputError, match="give weights=8 as well, which is the most faithful, or 1 to 6"):
        pliant.compile(model, compute="int8")
    with pytest.raises(InputError, match="compute is 'int4'; give one of fp32, bf16, int8, auto"):
        pliant.compile(model, weights=6, compute="int4")  # type: ignore[arg-type]
