"""Run one ONNX operator twice: compiled by pliant, and by onnx's reference implementation or onnxruntime."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import AVX2, Isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.run.graph.array_stage import open_image
from tests.kernels.tiles.amx_trap import library_of


@cache
def machine(isa: Isa, cache: Path | None = None) -> tuple[Library, ThreadPool]:
    """Two threads and the kernels of a row; shared by all tests of the process."""
    library = library_of(isa, cache)
    return library, ThreadPool(2, library)


def expected(
    op: str,
    inputs: Sequence[np.ndarray | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    n_outputs: int = 1,
    opset: int = onnx.defs.onnx_opset_version(),
) -> list[np.ndarray]:
    """What onnx's reference implementation answers."""
    node = helper.make_node(
        op, _names("x", inputs), [f"y{i}" for i in range(n_outputs)], **(attributes or {})
    )
    feeds = {name: a for name, a in zip(node.input, inputs, strict=True) if name}
    values = [helper.make_tensor_value_info(name, _type_of(a), a.shape) for name, a in feeds.items()]
    results = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "one", values, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)]


def answer_of_onnxruntime(
    op: str, inputs: Sequence[np.ndarray | None], attributes: Mapping[str, Any], *, opset: int = 18
) -> np.ndarray:
    """What onnxruntime answers first."""
    names = _names("x", inputs)
    known = {name: a for name, a in zip(names, inputs, strict=True) if a is not None}
    values = [helper.make_tensor_value_info(name, _type_of(a), a.shape) for name, a in known.items()]
    node = helper.make_node(op, names, ["y"], **attributes)
    graph = helper.make_graph([node], "one", values, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, known)[0])


def run_node(
    op: str,
    inputs: Sequence[np.ndarray | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    types: Sequence[TensorType],
    isa: Isa,
    constants: Sequence[int] = (),
    cache: Path | None = None,
) -> list[np.ndarray]:
    """What pliant answers: outputs of `types`. Inputs numbered in `constants` are known before the run."""
    names = _names("x", inputs)
    known = {name: a for name, a in zip(names, inputs, strict=True) if name and a is not None}
    outputs = tuple(f"y{i}" for i in range(len(types)))
    graph = Graph(
        nodes=(Node(op, tuple(names), outputs, _plain(attributes or {}), name="it"),),
        inputs=tuple(name for i, name in enumerate(names) if name and i not in constants),
        outputs=outputs,
        types={name: type_of(a) for name, a in known.items()} | dict(zip(outputs, types, strict=True)),
        constants={names[i]: known[names[i]] for i in constants if names[i]},
    )
    library, pool = machine(isa, cache)
    session = open_image(make_image(graph, Target(isa, 2)), pool, library)
    return list(session.run({name: known[name] for name in graph.inputs}).values())


def kernel_of(
    op: str, inputs: Sequence[np.ndarray], attributes: dict[str, Any], shape: tuple[int, ...]
) -> str:
    """The kernel that an operator with constant weights (and bias) is lowered to on AVX2: of one call."""
    names = _names("x", inputs)
    arrays = dict(zip(names, inputs, strict=True))
    constants = {name: arrays[name] for name in names[1:3]}
    graph = Graph(
        nodes=(Node(op, tuple(names), ("y",), attributes, name="it"),),
        inputs=tuple(name for name in names if name not in constants),
        outputs=("y",),
        types={name: type_of(a) for name, a in arrays.items()} | {"y": TensorType("float32", shape)},
        constants=constants,
    )
    (call,) = make_image(graph, Target(AVX2, 2)).calls
    return call.kernel.name


def type_of(array: np.ndarray) -> TensorType:
    """The type of an array."""
    return TensorType(array.dtype.name, array.shape)


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()}


def _names(letter: str, inputs: Sequence[np.ndarray | None]) -> list[str]:
    return [f"{letter}{i}" if a is not None else "" for i, a in enumerate(inputs)]


def _type_of(array: np.ndarray) -> int:
    return helper.np_dtype_to_tensor_dtype(array.dtype)
