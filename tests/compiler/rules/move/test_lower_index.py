"""The gather and scatter families through a session: against onnx's reference, and with hostile indices."""

import numpy as np
import pytest

from pliant.api.compile_onnx import compile
from pliant.errors import GraphError, InputError
from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.move.test_lower_move import check, numbers
from tests.compiler.rules.run_node import run_node, type_of
from tests.models.onnx_models import parse

HOST = to_portable(AVX2)
EVERY_ISA = pytest.mark.parametrize(
    "isa", [to_portable(isa) for isa in (AVX512, AVX2, X86_64)], ids=lambda isa: isa.name
)
FAR = [2**62, -(2**62), 2**63 - 1, -(2**63), 5, -6]


def _places(high: int, *shape: int, dtype: str = "int64", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-high, high, shape).astype(dtype)


@EVERY_ISA
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_gather_along_every_axis(index: str, isa: Isa) -> None:
    """Rows, single elements, negative indices, a scalar index, a long table."""
    for axis in (0, 1, -1):
        check("Gather", [numbers(5, 6, 7), _places(5, 3, 4, dtype=index)], {"axis": axis}, isa=isa)
    check("Gather", [numbers(500, 64), _places(500, 1000, dtype=index)], isa=isa)
    check("Gather", [numbers(5, 8, dtype="int8"), np.array(-2, index)], isa=isa)


@EVERY_ISA
def test_elements_and_tuples(isa: Isa) -> None:
    """An index for each element, or for each row by several dimensions, with batches."""
    for axis in (0, 1, 2):
        check("GatherElements", [numbers(5, 6, 7), _places(5, 5, 6, 7)], {"axis": axis}, isa=isa)
    check("GatherElements", [numbers(5, 6, 7), _places(5, 5, 3, 7)], {"axis": 1}, isa=isa)
    check("GatherND", [numbers(5, 6, 7), _places(5, 3, 2)], isa=isa)
    check("GatherND", [numbers(3, 6, 7, 2), _places(6, 3, 4, 1)], {"batch_dims": 1}, isa=isa)
    check("GatherND", [numbers(3, 6, 7, 2), _places(2, 3, 4)], isa=isa)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_scatter_with_every_reduction(reduction: str, dtype: str) -> None:
    """Repeated indices combine in order, except where none may repeat."""
    x = np.abs(numbers(5, 6, 7)).astype(dtype) % 9
    attributes = {"reduction": reduction}
    order = np.argsort(numbers(5, 6, 7), axis=1)[:, :3]
    places = order if reduction == "none" else _places(5, 2, 3, 4)
    updates = (np.arange(places.size).reshape(places.shape) % 5 + 1).astype(dtype)
    check("ScatterElements", [x, places, updates], {"axis": 1, **attributes})
    rows = np.array([[3, 1], [0, 4], [2, 2]])
    rows = rows if reduction == "none" else np.concatenate([rows, rows])
    row_updates = (np.arange(len(rows) * 7).reshape(-1, 7) % 5 + 1).astype(dtype)
    check("ScatterND", [x, rows, row_updates], attributes)


def test_half_floats_are_summed_in_float32() -> None:
    """1 + 1e-3 keeps its last bits until it is rounded once, by float16's own rounding."""
    x, places = np.ones((3, 4), np.float16), np.array([[0], [2]])
    updates = np.full((2, 4), 1e-3, np.float16)
    type_ = type_of(x)
    for op, inputs in (("ScatterND", [x, places, updates]),):
        (y,) = run_node(op, inputs, {"reduction": "add"}, types=[type_], isa=HOST)
        wanted = x.copy()
        wanted[[0, 2]] = (x[0].astype(np.float32) + updates[0].astype(np.float32)).astype(np.float16)
        np.testing.assert_array_equal(y, wanted)


@EVERY_ISA
@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"])
def test_an_index_outside_is_an_error_that_names_it(op: str, isa: Isa) -> None:
    """A wrong token id was answered as if it were the last one; ONNX and onnxruntime call it an error."""
    x = np.arange(5, dtype=np.float32)
    for bad in FAR:
        places = np.array([4, bad, -5, 0])
        given = places[:, None] if op.endswith("ND") else places
        inputs = [x, given] if op.startswith("Gather") else [x, given, np.ones(4, np.float32)]
        types = [TensorType("float32", (4,) if op.startswith("Gather") else (5,))]
        with pytest.raises(InputError, match=f"'it' \\({op}\\).* index {bad}, .* has 5: give -5 to 4"):
            run_node(op, inputs, types=types, isa=isa)


def test_the_dimension_at_fault_is_named_of_several() -> None:
    """Each index of a tuple has a limit of its own."""
    x = numbers(3, 7)
    for places, said in (([[2, 6], [0, -8]], "index -8, .* has 7"), ([[3, 6], [0, 0]], "index 3, .* has 3")):
        with pytest.raises(InputError, match=said):
            run_node("GatherND", [x, np.array(places)], types=[TensorType("float32", (2,))], isa=HOST)


def test_an_index_outside_touches_nothing_else() -> None:
    """What lies beside the output stays as it was, and the next answer of the session is right."""
    session = compile(
        parse(
            "g (float[5] x, int64[n] i, float[n] u) => (float[5] y) "
            '{ y = ScatterElements <axis = 0, reduction = "add"> (x, i, u) }'
        ),
        threads=2,
    )
    x, around = np.zeros(5, np.float32), np.full(15, 7, np.float32)
    feeds = {"x": x, "i": np.array(FAR), "u": np.ones(len(FAR), np.float32)}
    with session:
        with pytest.raises(InputError, match="give -5 to 4"):
            session.run(feeds, {"y": around[5:10]})
        assert set(around[:5].tolist() + around[10:].tolist()) == {7}
        right = session.run(feeds | {"i": np.array([0, 1, 2, 3, 4, -1])})["y"]
        np.testing.assert_array_equal(right, [1, 1, 1, 1, 2])


def test_onnxruntime_refuses_the_same_indices() -> None:
    """The reference for what is an error: each end of the range, and one beyond it."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = parse("g (float[5,2] x, int64[1] i) => (float[1,2] y) { y = Gather <axis = 0> (x, i) }")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), options)
    with compile(model, threads=1) as ours:
        for place in (-6, -5, 4, 5):
            feeds = {"x": numbers(5, 2), "i": np.array([place])}
            if place in (-5, 4):
                np.testing.assert_array_equal(ours.run(feeds)["y"], theirs.run(None, feeds)[0])
                continue
            with pytest.raises(InputError):
                ours.run(feeds)
            with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument):
                theirs.run(None, feeds)


def test_reading_from_nothing_is_refused() -> None:
    """No index is inside an empty dimension, so there is nothing to clamp to."""
    types = [TensorType("float32", (2, 3))]
    with pytest.raises(GraphError, match="dimension of length 0"):
        run_node("Gather", [numbers(0, 3), np.array([0, 1])], types=types, isa=HOST)
    check("Gather", [numbers(0, 3), np.zeros((0,), np.int64)])


def test_sequences_are_reversed_up_to_their_lengths() -> None:
    """Along either of the first two axes; a length beyond the sequence counts as all of it."""
    x, lengths = numbers(4, 3, 5), np.array([4, 2, 0])
    check("ReverseSequence", [x, lengths], {"time_axis": 0, "batch_axis": 1})
    check("ReverseSequence", [numbers(4, 3), np.array([3, 2, 0, 1])], {"time_axis": 1, "batch_axis": 0})
    attributes = {"time_axis": 0, "batch_axis": 1}
    (y,) = run_node("ReverseSequence", [x, np.array([99, -5, 2])], attributes, types=[type_of(x)], isa=HOST)
    np.testing.assert_array_equal(y[:, 0], x[::-1, 0])
    np.testing.assert_array_equal(y[:, 1], x[:, 1])


@pytest.mark.parametrize(
    "places",
    [
        np.array(0),
        np.array(-2),
        np.arange(5),
        np.arange(5)[::-1],
        np.arange(3)[:, None] + np.arange(3) - 5,
        np.zeros((2, 3), int),
        np.array([[1]]),
        np.array([0, 2, 3]),
        np.array([0, 1, 99]),
    ],
)
@pytest.mark.parametrize("axis", [0, 1])
def test_regular_indices_known_before_the_run_are_a_view(places: np.ndarray, axis: int) -> None:
    """A slice, a reversal, sliding windows: copied as rows or not at all. Others go through the kernel."""
    x = numbers(5, 5, 6)
    if places.max() < 5:
        check("Gather", [x, places], {"axis": axis}, constants=(1,))
    else:
        types = [type_of(np.take(x, np.minimum(places, 4), axis))]
        with pytest.raises(InputError, match="index 99"):
            run_node("Gather", [x, places], {"axis": axis}, types=types, isa=HOST, constants=(1,))


@pytest.mark.parametrize(
    ("op", "shapes", "result"),
    [
        ("GatherElements", [(2, 3), (2, 4)], (2, 4)),
        ("GatherND", [(2, 3), (4, 3)], (4,)),
        ("Gather", [(2, 3), (4,)], (5, 3)),
        ("ScatterElements", [(2, 3), (2, 3), (2, 2)], (2, 3)),
        ("ScatterElements", [(2, 3), (2, 4), (2, 4)], (2, 3)),
        ("ScatterND", [(2, 3), (4, 1), (4, 2)], (2, 3)),
        ("ReverseSequence", [(2, 3), (5,)], (2, 3)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(op: str, shapes: list, result: tuple[int, ...]) -> None:
    """ONNX's inference lets these pass; a kernel would read or write outside a tensor."""
    inputs = [numbers(*s) if i in (0, 2) else np.zeros(s, np.int64) for i, s in enumerate(shapes)]
    with pytest.raises(GraphError, match="cannot do with these shapes"):
        run_node(op, inputs, types=[TensorType("float32", result)], isa=HOST)
