"""Weights shared by images."""

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from pliant.api.compile_onnx import compile as compile_model
from pliant.compiler.executable.call import PackedConstant, Target
from pliant.compiler.executable.image import make_image
from pliant.compiler.passes.passes import simplify
from pliant.kernels.emit.isa import AVX2, AVX512, AVX512_AMX, NEON, X86_64, Isa
from pliant.models.onnx.onnx_file import open_onnx
from pliant.run.packed_weights import SharedWeights
from pliant.run.weight_sizes import GivenArrays
from tests.compiler.passes.read_graph import EVERY_OPERATOR
from tests.models.one_graph import bind

ISAS = [X86_64, AVX2, AVX512, AVX512_AMX, NEON]
CONVOLUTIONS: list[tuple[str, tuple[int, ...], dict[str, Any], tuple[int, ...]]] = [
    ("Conv", (32, 3, 3, 3), {"pads": [1, 1, 1, 1]}, (32, 8, 5)),
    ("Conv", (16, 8, 1, 1), {"group": 2}, (16, 2, 4)),
    ("Conv", (32, 32, 3, 3), {"pads": [1, 1, 1, 1]}, (3, 16, 40)),
    ("Conv", (24, 1, 3, 3), {"group": 24}, (4, 20)),
    ("Conv", (32, 8, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}, (3, 24)),
    ("ConvTranspose", (8, 16, 3, 3), {"strides": [2, 2]}, (2, 20)),
]


def _convolution(op: str, shape: tuple[int, ...], attributes: dict[str, Any]) -> Any:
    """One node of constant weights and bias, for images of any size."""
    random = np.random.default_rng(0)
    channels = shape[0] if op == "ConvTranspose" else shape[1] * attributes.get("group", 1)
    outs = shape[1] if op == "ConvTranspose" else shape[0]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w", "b"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", 1, [1, channels, "h", "w"])],
        [helper.make_tensor_value_info("y", 1, None)],
        [
            numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), "w"),
            numpy_helper.from_array(random.standard_normal(outs).astype(np.float32), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_what_is_held_is_read_while_another_shape_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's metrics failed, since the weights changed while they were counted."""
    shared, contains, counted = SharedWeights(), GivenArrays.__contains__, list[np.ndarray]()

    def pack(name: str) -> None:
        image: Any = SimpleNamespace(constants={name: np.zeros(4, np.float32)}, packed={})
        shared.pack(image, {})

    def packing(given: GivenArrays, array: np.ndarray) -> bool:
        pack("new")
        counted.append(array)
        return contains(given, array)

    for name in "abc":
        pack(name)
    monkeypatch.setattr(GivenArrays, "__contains__", packing)
    assert not shared.given.arrays  # small ones take no memory of their own
    assert len(counted) == 3


@pytest.mark.parametrize(
    "isa", [X86_64, AVX2, AVX512, AVX512_AMX, NEON], ids=["sse", "avx2", "avx512", "amx", "neon"]
)
@pytest.mark.parametrize(("op", "shape", "attributes", "sizes"), CONVOLUTIONS)
def test_images_of_other_sizes_find_weights_in_their_own_order(
    op: str, shape: tuple[int, ...], attributes: dict[str, Any], sizes: tuple[int, ...], isa: Isa
) -> None:
    """Which kernel runs depends on the size; a name says in which order its kernel reads."""
    model, shared = open_onnx(_convolution(op, shape, attributes)), SharedWeights()
    for size in sizes:
        graph = simplify(bind(model, {"h": size, "w": size}, supported=EVERY_OPERATOR))
        image = make_image(graph, Target(isa, 2))
        fresh = SharedWeights().pack(image, graph.constants)
        for name, array in shared.pack(image, graph.constants).items():
            np.testing.assert_array_equal(array, fresh[name], err_msg=f"{name} at {size}")


@pytest.mark.parametrize(("op", "shape", "attributes", "sizes"), CONVOLUTIONS[:2])
def test_a_session_answers_images_of_every_size(
    op: str, shape: tuple[int, ...], attributes: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    """One after the other, with weights held once."""
    model, random = _convolution(op, shape, attributes), np.random.default_rng(1)
    reference = ReferenceEvaluator(model)
    channels = shape[1] * attributes.get("group", 1)
    with compile_model(model, threads=1) as session:
        for size in (*sizes, sizes[0]):
            x = random.standard_normal((1, channels, size, size)).astype(np.float32)
            (wanted,) = reference.run(None, {"x": x})
            np.testing.assert_allclose(session.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)


def test_packed_forms_go_with_the_last_image_that_reads_them() -> None:
    """Another shape may want its weights in another form; both are held only while both are in use."""
    source = np.ones(16, np.float32)

    def made(form: str) -> dict[str, np.ndarray]:
        image: Any = SimpleNamespace(
            constants={}, packed={form: PackedConstant(64, lambda memory: None, "w")}
        )
        return weights.pack(image, {"w": source})

    weights = SharedWeights()
    rows, panels = made("w|rows"), made("w|panels")
    assert made("w|rows")["w|rows"] is rows["w|rows"]
    dropped = weakref.ref(rows["w|rows"])
    del rows
    weights.keep([panels])
    assert dropped() is None
    assert made("w|panels")["w|panels"] is panels["w|panels"]


def test_small_constants_are_held_once_on_cache_lines_and_not_in_their_file() -> None:
    """Kernels that decode planes load whole lines: a copy that begins elsewhere is a segmentation fault."""
    mapped = np.arange(40, dtype=np.float32)[1:]
    number = np.array(3, np.int64)
    image: Any = SimpleNamespace(constants={"a": mapped, "n": number}, packed={})
    weights = SharedWeights()
    held = weights.pack(image, {})
    assert held["a"].ctypes.data % 64 == 0
    assert held["n"].ctypes.data % 64 == 0
    assert not np.shares_memory(held["a"], mapped)
    np.testing.assert_array_equal(held["a"], mapped)
    assert held["n"].shape == ()
    assert weights.pack(image, {})["a"] is held["a"]
