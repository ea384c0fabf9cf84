"""LSTM, GRU and RNN through the compiler, against onnxruntime, or a plain loop where it falls short."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.run_node import run_node

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is the reference")

ISAS = [AVX2, X86_64, to_portable(AVX512)]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


def layer(
    op: str, steps: int, batch: int, inputs: int, hidden: int, directions: int = 1, seed: int = 0
) -> list[np.ndarray | None]:
    """x, W, R, B, lengths, initial_h and, for LSTM, initial_c and P, of the size that training makes."""
    random = np.random.default_rng(seed)

    def uniform(*shape: int) -> np.ndarray:
        return random.uniform(-1, 1, shape).astype(np.float32)

    G, scale = GATES[op], np.float32(hidden**-0.5)
    found: list[np.ndarray | None] = [
        uniform(steps, batch, inputs),
        uniform(directions, G * hidden, inputs) * scale,
        uniform(directions, G * hidden, hidden) * scale,
        uniform(directions, 2 * G * hidden),
        random.integers(1, steps + 1, batch).astype(np.int32),
        uniform(directions, batch, hidden),
    ]
    if op == "LSTM":
        found += [uniform(directions, batch, hidden), uniform(directions, 3 * hidden)]
    return found


def onnxruntimes(op: str, given: list[np.ndarray | None], attributes: dict[str, Any]) -> list[np.ndarray]:
    """What onnxruntime answers."""
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(given)]
    outputs = ["y", "y_h", "y_c"][: 3 if op == "LSTM" else 2]
    kinds = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32}
    values = [
        helper.make_tensor_value_info(name, kinds[a.dtype.name], a.shape)
        for name, a in zip(names, given, strict=True)
        if a is not None
    ]
    results = [helper.make_tensor_value_info(y, TensorProto.FLOAT, None) for y in outputs]
    graph = helper.make_graph([helper.make_node(op, names, outputs, **attributes)], "one", values, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {name: a for name, a in zip(names, given, strict=True) if a is not None}
    return [np.asarray(y) for y in session.run(None, feeds)]


def check(
    op: str,
    given: list[np.ndarray | None],
    attributes: dict[str, Any],
    isa: Isa,
    cache: Path,
    constants: tuple[int, ...] = (),
) -> None:
    want = onnxruntimes(op, given, attributes)
    types = [TensorType("float32", y.shape) for y in want]
    got = run_node(op, given, attributes, types=types, isa=isa, constants=constants, cache=cache)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_unequal_lengths_and_initial_states_answer_as_onnxruntime(
    op: str, direction: str, isa: Isa, cache: Path
) -> None:
    """Every optional input, units that fill no block, weights that come with the feeds."""
    given = layer(op, 7, 5, 9, 37, DIRECTIONS[direction])
    attributes = {"hidden_size": 37, "direction": direction}
    if op == "GRU":
        attributes["linear_before_reset"] = 1
    check(op, given[:7] if op == "LSTM" else given, attributes, isa, cache)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    ("batch", "hidden"), [(1, 300), (1, 16), (2, 64), (3, 20), (4, 33), (6, 48), (13, 40)]
)
def test_each_number_of_rows_has_a_tile_that_adds_up(op: str, batch: int, hidden: int, cache: Path) -> None:
    """Tiles of 1 to 6 rows sum in different chains; weights are packed once."""
    given = layer(op, 11, batch, 24, hidden)
    given[4] = None
    if op == "LSTM":
        given = given[:7]
    check(op, given, {"hidden_size": hidden}, AVX2, cache, constants=(1, 2, 3))


def test_peepholes_coupled_gates_and_clipping(cache: Path) -> None:
    """The rarer parts of ONNX's LSTM."""
    given = layer("LSTM", 5, 2, 4, 19)
    check("LSTM", given, {"hidden_size": 19}, AVX2, cache)
    check("LSTM", given[:7], {"hidden_size": 19, "clip": 0.3}, AVX2, cache)
    check("LSTM", given[:7], {"hidden_size": 19, "input_forget": 1}, AVX2, cache)


@pytest.mark.parametrize(
    ("names", "alphas", "betas"),
    [
        (["Relu", "Softsign"], [], []),
        (["HardSigmoid", "LeakyRelu"], [0.3, 0.05], [0.4]),
        (["ScaledTanh", "Elu"], [0.9, 0.7], [0.8]),
        (["Affine", "Softplus"], [0.5], [0.1]),
        (["Sigmoid", "ThresholdedRelu"], [0.2], []),
    ],
)
def test_each_activation_takes_its_own_parameters(
    names: list[str], alphas: list[float], betas: list[float], cache: Path
) -> None:
    """Parameters are listed for those activations only that have one."""
    given = layer("GRU", 4, 3, 5, 21)
    attributes: dict[str, Any] = {"hidden_size": 21, "activations": names}
    if alphas:
        attributes["activation_alpha"] = alphas
    if betas:
        attributes["activation_beta"] = betas
    check("GRU", given, attributes, AVX2, cache)


def test_two_directions_may_end_in_different_activations(cache: Path) -> None:
    """Then each direction has a kernel of its own."""
    given = layer("RNN", 6, 3, 5, 21, 2)
    attributes = {"hidden_size": 21, "direction": "bidirectional", "activations": ["Tanh", "Relu"]}
    check("RNN", given, attributes, AVX2, cache)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_a_batch_may_come_before_time(op: str, cache: Path) -> None:
    """ONNX's layout 1 is layout 0 with all tensors' first dimensions exchanged; onnxruntime lacks it."""
    given = layer(op, 5, 3, 4, 18, 2)
    if op == "LSTM":
        given = given[:7]
    attributes = {"hidden_size": 18, "direction": "bidirectional"}
    want = onnxruntimes(op, given, attributes)
    turned = [a if i in (1, 2, 3, 4) or a is None else a.swapaxes(0, 1).copy() for i, a in enumerate(given)]
    expected = [want[0].transpose(2, 0, 1, 3), *(state.swapaxes(0, 1) for state in want[1:])]
    types = [TensorType("float32", y.shape) for y in expected]
    got = run_node(op, turned, {**attributes, "layout": 1}, types=types, isa=AVX2, cache=cache)
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("op", "resets_late"), [("LSTM", 0), ("GRU", 1), ("GRU", 0), ("RNN", 0)])
@pytest.mark.parametrize(
    "lengths", [(9, 4, 4, 3, 1), (2, 1), (13, 12, 9, 9, 7, 7, 6, 5, 3, 3, 2, 2, 1, 1, 0)]
)
def test_concatenated_sequences_answer_as_each_alone(
    op: str, resets_late: int, direction: str, lengths: tuple[int, ...], isa: Isa, cache: Path
) -> None:
    """In any order of their rows, which other rows stand between; a sequence of no steps has no answer."""
    attributes: dict[str, Any] = {"hidden_size": 37, "direction": direction}
    if resets_late:
        attributes["linear_before_reset"] = 1
    n, D = len(lengths), DIRECTIONS[direction]
    _, w, r, b, *_ = layer(op, 1, 1, 9, 37, D)
    starts = np.zeros(n, np.int32)
    order = np.random.default_rng(n).permutation(n)
    starts[order] = np.cumsum([0, *(lengths[i] + 1 for i in order[:-1])])
    x = np.random.default_rng(1).uniform(-1, 1, (1, sum(lengths) + n, 9)).astype(np.float32)
    given = [x, w, r, b, np.int32(lengths), None, None, None, starts]
    types = [TensorType("float32", (1, x.shape[1], D, 37)), TensorType("float32", (n, D, 37))]
    here, known = {**attributes, "layout": 1}, (1, 2, 3)
    y, y_h = run_node(op, given, here, types=types, isa=isa, constants=known, cache=cache)
    for i, length in enumerate(lengths):
        rows = slice(starts[i], starts[i] + length)
        if length:
            want = onnxruntimes(op, [x[0, rows, None], w, r, b], attributes)
            np.testing.assert_allclose(y[0, rows], want[0][:, :, 0], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(y_h[i], want[1][:, 0], rtol=1e-5, atol=1e-5)
