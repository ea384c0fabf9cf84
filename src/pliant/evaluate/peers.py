"""Other runtimes behind one call, to be measured beside pliant's. Imports each only when it is asked for."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pliant.errors import InputError

Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def open_peer(name: str, path: Path, n_threads: int) -> Run:
    """`name` (onnxruntime or openvino) with the model at `path` on `n_threads` threads, latency first.

    Raises InputError when it is unknown or not installed.
    """
    if name not in _PEERS:
        raise InputError(f"{name!r} is no runtime to compare with; known are {', '.join(_PEERS)}.")
    try:
        return _PEERS[name](path, n_threads)
    except ImportError as error:
        raise InputError(f"{name} is not installed: pip install {name}.") from error


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


_PEERS: dict[str, Callable[[Path, int], Run]] = {"onnxruntime": _onnxruntime, "openvino": _openvino}
PEERS = tuple(_PEERS)
