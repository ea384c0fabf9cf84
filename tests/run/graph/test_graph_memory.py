"""Sessions on graphs within a bound of memory: what fits, in how many bits, and what is refused."""

import gc
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pliant
from pliant.api.compile_onnx import compile
from pliant.errors import BudgetError, InputError
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.store.coding.matrix import CodedMatrix
from tests.models.onnx_models import parse

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

WIDTH, LAYERS = 256, 3


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three products with ReLU between, of an open number of rows; 768 KB of weights in fp32."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for k in range(LAYERS):
        w = (rng.standard_normal((WIDTH, WIDTH)) / 16).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{k}"))
        nodes += [
            helper.make_node("MatMul", [x, f"w{k}"], [f"p{k}"]),
            helper.make_node("Relu", [f"p{k}"], [f"y{k}"]),
        ]
        x = f"y{k}"
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("x", x)]
    graph = helper.make_graph(nodes, "mlp", ports[:1], ports[1:], weights)
    path = tmp_path_factory.mktemp("mlp") / "mlp.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def rows(n: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((n, WIDTH)).astype(np.float32)}


def needed(path: Path, n: int, weights: str | int) -> int:
    with compile(path, threads=1, weights=weights) as session:
        session.run(rows(n))
        return session.memory.predicted_bytes


def least_of(error: BudgetError) -> int:
    found = re.search(r"Give at least (\d+) bytes", str(error))
    assert found is not None, error
    return int(found[1])


@pytest.mark.parametrize("weights", ["fp32", 4])
def test_what_is_predicted_is_what_lies_in_memory(mlp: Path, weights: str | int) -> None:
    """Weights are written whole, activations nearly so: a page may stay untouched at both ends of each."""
    with compile(mlp, threads=1, weights=weights) as session:
        session.run(rows(64))
        use = session.memory
    for part in use.parts:
        assert part.predicted_bytes is not None
        assert part.measured_bytes <= part.predicted_bytes
        assert part.measured_bytes >= part.predicted_bytes - 2 * 4096 * LAYERS
    assert [part.name for part in use.parts] == ["weights", "activations"]
    assert use.budget_bytes is None
    assert use.rss_bytes > use.measured_bytes
    assert "in all" in str(use)


def test_auto_takes_fp32_where_it_fits_and_else_the_most_bits_that_do(mlp: Path) -> None:
    """Each budget between the needs of two bitwidths gives the lower of the two."""
    needs = {weights: needed(mlp, 8, weights) for weights in ("fp32", *range(6, 0, -1))}
    assert list(needs.values()) == sorted(needs.values(), reverse=True)
    for weights, n_bytes in needs.items():
        with compile(mlp, threads=1, weights="auto", memory=n_bytes) as session:
            session.run(rows(8))
            assert session.weights == weights
            assert session.memory.predicted_bytes <= n_bytes == session.memory.budget_bytes
    with compile(mlp, threads=1, weights="auto", memory=needs[3] - 1) as session:
        session.run(rows(8))
        assert session.weights == 2


def test_auto_codes_weights_that_are_integers_already() -> None:
    """Bytes would not make them smaller, but fewer bits do."""
    rng = np.random.default_rng(0)
    q = rng.integers(-127, 128, (WIDTH, WIDTH), np.int8)
    scale = (rng.random(WIDTH) / 1000).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "quantized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [numpy_helper.from_array(q, "q"), numpy_helper.from_array(scale, "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    def opened(weights: str | int, memory: int | None) -> tuple[OnnxSession, np.ndarray]:
        session = compile(model, threads=1, weights=weights, memory=memory)
        return session, session.run(rows(8))["y"]

    with opened(3, None)[0] as session:
        needs = session.memory.predicted_bytes
    session, answer = opened("auto", needs)
    with session:
        assert session.weights == 3
        assert session.memory.predicted_bytes <= needs
    wanted = rows(8)["x"].astype(np.float64) @ (q * scale.astype(np.float64))
    # Codes of 3 bits leave a relative error of some 0.2 (store.quantize).
    assert np.sqrt(np.square(answer - wanted).mean()) < 0.3 * np.sqrt(np.square(wanted).mean())


def test_a_session_of_open_keeps_weights_as_one_of_compile_does(mlp: Path) -> None:
    """Both functions open ONNX models, and both bound their memory."""
    with compile(mlp, threads=1, weights=4) as compiled, pliant.open(mlp, threads=1, weights=4) as opened:
        expected = compiled.run(rows(8))
        for name, answer in opened.run(rows(8)).items():
            np.testing.assert_array_equal(answer, expected[name])
    with pliant.open(mlp, threads=1, weights="auto", memory=needed(mlp, 8, 4)) as opened:
        opened.run(rows(8))
        assert isinstance(opened, OnnxSession)
        assert opened.weights == 4


@pytest.mark.parametrize("weights", ["fp32", 5, "auto"])
def test_the_least_that_an_error_names_works_and_a_byte_less_does_not(mlp: Path, weights: str | int) -> None:
    """Else a user would have to search for it."""
    with compile(mlp, threads=1, weights=weights, memory=10_000) as session:
        with pytest.raises(BudgetError) as failure:
            session.run(rows(8))
        assert session.weight_bytes == 0, "nothing is allocated for shapes that do not fit"
    least = least_of(failure.value)
    assert ('weights="auto"' in str(failure.value)) == (weights != "auto")
    with compile(mlp, threads=1, weights=weights, memory=least) as session:
        session.run(rows(8))
        assert session.memory.measured_bytes <= least
    with compile(mlp, threads=1, weights=weights, memory=least - 1) as session, pytest.raises(BudgetError):
        session.run(rows(8))


def test_shapes_that_are_too_large_are_refused_and_smaller_ones_still_answered(mlp: Path) -> None:
    """Shapes are known when they are fed; the session must outlive one that does not fit."""
    with compile(mlp, threads=1, memory=needed(mlp, 8, "fp32")) as session:
        expected = session.run(rows(8))
        for _ in range(2):
            with pytest.raises(BudgetError, match="smaller shapes"):
                session.run(rows(4096))
        again = session.run(rows(8))
        assert all(np.array_equal(expected[y], again[y]) for y in expected)


def test_weights_that_were_coded_in_vain_are_freed(mlp: Path) -> None:
    """They would count in no session's memory."""

    def coded() -> list[CodedMatrix]:
        gc.collect()
        return [one for one in gc.get_objects() if type(one) is CodedMatrix]

    before = coded()  # held, so that other tests' matrices stay

    def n_coded() -> int:
        return sum(all(one is not known for known in before) for one in coded())

    with compile(mlp, threads=1, weights="auto", memory=10_000) as session:
        with pytest.raises(BudgetError):
            session.run(rows(8))
        assert n_coded() == 0
    with compile(mlp, threads=1, weights="auto", memory=needed(mlp, 8, 2)) as session:
        session.run(rows(8))
        assert session.weights == 2
        assert n_coded() == LAYERS


def test_images_go_before_the_bound_is_broken(mlp: Path) -> None:
    """What was compiled for other shapes may be compiled again; the bound holds all the time."""
    most = needed(mlp, 512, "fp32")
    with compile(mlp, threads=1, memory=most) as session:
        for n in (1, 8, 64, 512, 100):
            session.run(rows(n))
            assert session.memory.predicted_bytes <= most
            assert session.memory.measured_bytes <= most


@pytest.mark.parametrize("weights", ["fp32", 8, 4])
def test_weights_that_are_given_in_memory_count(mlp: Path, weights: str | int) -> None:
    """A model given by its bytes lies in memory beside what kernels read, coded or not; one given by its path
    is mapped.
    """
    with compile(mlp.read_bytes(), threads=1, weights=weights) as session:
        session.run(rows(8))
        given = session.memory
    with compile(mlp, threads=1, weights=weights) as session:
        session.run(rows(8))
        mapped = session.memory
    n_bytes = LAYERS * WIDTH * WIDTH * 4
    assert given.predicted_bytes == mapped.predicted_bytes + n_bytes
    assert given.measured_bytes == pytest.approx(mapped.measured_bytes + n_bytes, abs=4 * 4096 * LAYERS)


def test_a_table_that_is_read_where_it_was_given_counts_once() -> None:
    """No kernel packs it: the model's own memory is all that it takes."""
    model = parse("g (int64[N] x) => (float[N,64] y) { y = Gather(t, x) }")
    table = np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "t"))
    with compile(model.SerializeToString(), threads=1) as session:
        answer = session.run({"x": np.arange(3)})["y"]
        use = session.memory
    np.testing.assert_array_equal(answer, table[:3])
    assert use.predicted_bytes < table.nbytes + 20_000
    assert {part.name: part.predicted_bytes for part in use.parts}["weights as given"] == table.nbytes


def test_a_compiled_directory_is_bounded_by_its_activations(mlp: Path, tmp_path: Path) -> None:
    """Its weights stay mapped: they are shown beside what counts."""
    from typer.testing import CliRunner

    from pliant.cli.app import app

    made = tmp_path / "compiled"
    done = CliRunner().invoke(app, ["compile", str(mlp), "-o", str(made), "--dim", "n=64", "--threads", "1"])
    assert done.exit_code == 0, done.output
    with pliant.load(made, threads=1) as session:
        session.run(rows(64))
        use = session.memory
    (activations,) = [part for part in use.parts if part.name == "activations"]
    (mapped,) = [part for part in use.beside if part.name == "weights in mapped files"]
    assert use.predicted_bytes == activations.predicted_bytes
    assert mapped.predicted_bytes is not None
    assert mapped.predicted_bytes >= LAYERS * WIDTH * WIDTH * 4
    pliant.load(made, threads=1, memory=use.predicted_bytes).close()
    with pytest.raises(BudgetError, match=f"Give at least {use.predicted_bytes} bytes"):
        pliant.load(made, threads=1, memory=use.predicted_bytes - 1)


def test_a_model_without_matrices_names_what_fp32_takes() -> None:
    """There is nothing to code: fewer bits are no way out."""
    model = parse(
        "g (float[N,300] x) => (float[N,300] y) { a = Softmax(x) b = Transpose(a) y = Transpose(b) }"
    )
    without = ("transposes", "maps", "pushes")
    with (
        compile(model, threads=1, weights="auto", memory=1000, without=without) as session,
        pytest.raises(BudgetError, match="weights in fp32 take 0"),
    ):
        session.run({"x": np.ones((400, 300), np.float32)})


def test_weights_of_no_kind_are_refused(mlp: Path) -> None:
    """The message names what there is."""
    with pytest.raises(InputError, match="'fp32', 'auto', 1 to 6, or 8"):
        compile(mlp, weights="int4")  # type: ignore[arg-type]
