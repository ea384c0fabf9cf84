"""Other runtimes behind one call, to be measured beside pliant's; each is imported when it is asked for."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pliant.errors import InputError

Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def open_peer(name: str, path: Path, n_threads: int) -> Run:
    """`name` (one of PEERS) with the model at `path` on `n_threads` threads, latency first.

    torch reads no ONNX: it runs the program that torch.export.save wrote beside it, MODEL.pt2, eagerly, with
    the same inputs and outputs in the same order. Raises InputError when a runtime is unknown or not
    installed, or that file is missing.
    """
    if name not in _PEERS:
        raise InputError(f"{name!r} is not a known runtime; give some of {', '.join(_PEERS)}.")
    try:
        return _PEERS[name](path, n_threads)
    except ImportError as error:
        raise InputError(
            f"{name} is not installed: pip install {name}, or all runtimes with pip install 'pliant[bench]'."
        ) from error


def _onnxruntime(path: Path, n_threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(None, dict(feeds)), strict=True))

    return run


def _openvino(path: Path, n_threads: int) -> Run:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": n_threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1,
                "INFERENCE_PRECISION_HINT": "f32"}  # fmt: skip
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    request = compiled.create_infer_request()

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        results: Any = request.infer(dict(feeds))
        return {port.get_any_name(): np.array(array) for port, array in results.items()}

    return run


def _torch(path: Path, n_threads: int) -> Run:
    import onnx
    import torch
    from torch.utils import _pytree as pytree

    program = path.with_suffix(".pt2")
    if not program.is_file():
        raise InputError(
            f"torch cannot read ONNX and there is no {program}: write the module that the model was exported "
            "from there, torch.export.save(torch.export.export(module, inputs), FILE)."
        )
    torch.set_num_threads(n_threads)
    module = torch.export.load(program).module()
    names = [value.name for value in onnx.load(path, load_external_data=False).graph.output]

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            found = pytree.tree_leaves(module(*(torch.from_numpy(array) for array in feeds.values())))
        return {name: tensor.numpy() for name, tensor in zip(names, found, strict=True)}

    return run


_PEERS: dict[str, Callable[[Path, int], Run]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "torch": _torch,
}
PEERS = tuple(_PEERS)
