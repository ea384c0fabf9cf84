"""A model in pliant, onnxruntime or OpenVINO, two threads; run alone, what one takes in a fresh process.

`python bench/runtimes.py RUNTIME FILE` prints the time to the first answer, import included, and the peak of
resident memory over three runs. With `--serve OUT` it saves the first answer and then, for each line on
standard input, runs twice and prints the seconds of the second run. Imports no runtime but the one asked for.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

THREADS = 2


def _pliant(path: Path, given: dict[str, np.ndarray]) -> Callable[[], np.ndarray]:
    import pliant

    session = pliant.compile(path, threads=THREADS)
    return lambda: session.run(given)["y"]


def _onnxruntime(path: Path, given: dict[str, np.ndarray]) -> Callable[[], np.ndarray]:
    import onnxruntime

    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads, chosen.inter_op_num_threads = THREADS, 1
    session = onnxruntime.InferenceSession(str(path), chosen, providers=["CPUExecutionProvider"])
    known = {x.name for x in session.get_inputs()}
    own = {x: a for x, a in given.items() if x in known}
    return lambda: np.asarray(session.run(None, own)[0])


def _openvino(path: Path, given: dict[str, np.ndarray]) -> Callable[[], np.ndarray]:
    import openvino

    config = {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(path), "CPU", config)
    request = compiled.create_infer_request()
    known = {name for port in compiled.inputs for name in port.get_names()}
    own = {x: a for x, a in given.items() if x in known}
    return lambda: np.asarray(request.infer(own)[0])


def _loaded(path: Path, given: dict[str, np.ndarray]) -> Callable[[], np.ndarray]:
    """What pliant wrote when it compiled the model."""
    import pliant

    session = pliant.load(path, threads=THREADS)
    return lambda: session.run(given)["y"]


RUNTIMES = {"pliant": _pliant, "onnxruntime": _onnxruntime, "openvino": _openvino}


def main() -> None:
    name, path = sys.argv[1], Path(sys.argv[2])
    start = time.perf_counter()
    ids = np.random.default_rng(0).integers(1000, 30000, (1, 128), dtype=np.int64)
    run = {**RUNTIMES, "loaded": _loaded}[name](path, {"ids": ids, "mask": np.ones_like(ids)})
    if len(sys.argv) > 3:
        np.save(sys.argv[4], run())
        _serve(run)
        return
    run()
    first_s = time.perf_counter() - start
    run()
    run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"first answer s": first_s, "peak MB": peak}))


def _serve(run: Callable[[], np.ndarray]) -> None:
    print("ready", flush=True)
    for _ in sys.stdin:
        run()
        start = time.perf_counter()
        run()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
