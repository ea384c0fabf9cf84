"""A model in one runtime, two threads, in a separate process: the cost of the process, then runs on request.

`python bench/runtimes.py RUNTIME FILE FEEDS` (a model, arrays by name in an .npz) answers once and prints the
seconds of the first answer with and without import and loading, the peak of resident memory, and the
allocations of that run if they are counted. With `--serve OUT` it saves the answer and then, for each line on
standard input, runs and prints the seconds of the second of two runs, and the processor seconds of its
calling thread. Imports only the selected runtime.
"""

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

THREADS = 2

Feeds = Mapping[str, np.ndarray]
Run = Callable[[], np.ndarray]


def _pliant(path: Path, given: Feeds, threads: int, cache: Path | None) -> Run:
    return _scheduled(path, given, threads, cache, "static")


def _scheduled(path: Path, given: Feeds, threads: int, cache: Path | None, kind: str) -> Run:
    import pliant

    session = pliant.compile(path, threads=threads, schedule=kind, cache=cache)  # type: ignore[arg-type]
    return lambda: next(iter(session.run(given).values()))


def _coded(
    path: Path,
    given: Feeds,
    threads: int,
    cache: Path | None,
    compute: str,
    weights: int | str = 6,
    examples: Sequence[Feeds] = (),
) -> Run:
    """pliant with weights of `weights` bits."""
    import pliant

    session = pliant.compile(
        path,
        threads=threads,
        weights=weights,
        compute=compute,
        cache=cache,
        examples=examples,  # type: ignore[arg-type]
    )
    return lambda: next(iter(session.run(given).values()))


def _calibrated(path: Path, given: Feeds, threads: int, cache: Path | None, compute: str) -> Run:
    """As `_coded` in 6 bits, chosen for the inputs beside the model: examples along the first axis."""
    with np.load(path.with_suffix(".examples.npz")) as file:
        arrays = dict(file)
    n_examples = len(next(iter(arrays.values())))
    examples = [{name: array[i] for name, array in arrays.items()} for i in range(n_examples)]
    return _coded(path, given, threads, cache, compute, examples=examples)


def _loaded(path: Path, given: Feeds, threads: int, cache: Path | None) -> Run:
    """The directory that `pliant compile` wrote."""
    import pliant

    session = pliant.load(path, threads=threads)
    return lambda: next(iter(session.run(given).values()))


def _onnxruntime(path: Path, given: Feeds, threads: int, cache: Path | None) -> Run:
    import onnxruntime

    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads, chosen.inter_op_num_threads = threads, 1
    chosen.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), chosen, providers=["CPUExecutionProvider"])
    known = {x.name for x in session.get_inputs()}
    own = {x: a for x, a in given.items() if x in known}
    return lambda: np.asarray(session.run(None, own)[0])


def _openvino(path: Path, given: Feeds, threads: int, cache: Path | None, *, precision: str = "f32") -> Run:
    import openvino

    config = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", config)
    request = compiled.create_infer_request()
    known = {name for port in compiled.inputs for name in port.get_names()}
    own = {x: a for x, a in given.items() if x in known}
    return lambda: np.array(request.infer(own)[0])


def _torch(path: Path, given: Feeds, threads: int, cache: Path | None, *, is_compiled: bool = False) -> Run:
    """The module the file was exported from, with the same weights."""
    import torch

    from fluidml_models import module

    torch.set_num_threads(threads)
    made = module(path.stem)
    run = torch.compile(made) if is_compiled else made
    arguments = [torch.from_numpy(a) for a in given.values()]

    def answer() -> np.ndarray:
        with torch.inference_mode():
            found: np.ndarray = run(*arguments).numpy()
        return found

    return answer


def _torch_compiled(path: Path, given: Feeds, threads: int, cache: Path | None) -> Run:
    return _torch(path, given, threads, cache, is_compiled=True)


def _tvm(path: Path, given: Feeds, threads: int, cache: Path | None) -> Run:
    """The library of bench/tvm_build.py, in TVM's virtual machine."""
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    arguments = [tvm.runtime.tensor(a) for a in given.values()]

    def answer() -> np.ndarray:
        found = machine["main"](*arguments)
        result: np.ndarray = (found if hasattr(found, "numpy") else found[0]).numpy()
        return result

    return answer


def _nothing(path: Path, given: Feeds, threads: int, cache: Path | None) -> Run:
    """Python and numpy alone."""
    return lambda: np.empty(0, np.float32)


RUNTIMES: dict[str, Callable[[Path, Feeds, int, Path | None], Run]] = {
    "pliant": _pliant,
    "none": lambda *given: _scheduled(*given, "none"),
    "paper": lambda *given: _scheduled(*given, "paper"),
    "exact": lambda *given: _scheduled(*given, "exact"),
    "6 bits": lambda *given: _coded(*given, "fp32"),
    "6 bits int8": lambda *given: _coded(*given, "int8"),
    "6 bits, examples": lambda *given: _calibrated(*given, "fp32"),
    "6 bits int8, examples": lambda *given: _calibrated(*given, "int8"),
    "8 bits": lambda *given: _coded(*given, "fp32", 8),
    "8 bits int8": lambda *given: _coded(*given, "int8", 8),
    "6 bits bf16": lambda *given: _coded(*given, "bf16"),
    "bf16": lambda *given: _coded(*given, "bf16", "fp32"),
    "loaded": _loaded,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "openvino bf16": lambda *given: _openvino(*given, precision="bf16"),
    "torch": _torch,
    "torch compiled": _torch_compiled,
    "tvm": _tvm,
    "nothing": _nothing,
}


def main() -> None:
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runtime", choices=RUNTIMES)
    parser.add_argument("file", type=Path)
    parser.add_argument("feeds", type=Path)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--serve", metavar="OUT", type=Path)
    opts = parser.parse_args()
    with np.load(opts.feeds) as stored:
        given = {x: stored[x] for x in stored.files}
    run = RUNTIMES[opts.runtime](opts.file, given, opts.threads, opts.cache)
    loaded, before = time.perf_counter(), _allocations()
    answer = run()
    end, after = time.perf_counter(), _allocations()
    if opts.serve:
        np.save(opts.serve, answer)
    asked = None if before is None or after is None else after - before
    took = {"first_s": end - loaded, "start_s": end - start, "peak_mb": _peak_mb(), "allocations": asked}
    print(json.dumps(took), flush=True)
    if opts.serve:
        _serve(run)


def _serve(run: Run) -> None:
    for _ in sys.stdin:
        run()  # other processes ran since: warm pages and caches again
        start, own = time.perf_counter(), time.thread_time()
        run()
        print(time.perf_counter() - start, time.thread_time() - own, flush=True)


def _allocations() -> int | None:
    """Allocations so far, if bench/counter.c is preloaded."""
    count = getattr(ctypes.CDLL(None), "allocations", None)
    return None if count is None else int(count())


def _peak_mb() -> float:
    """This process's own peak: getrusage's would include that of its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


if __name__ == "__main__":
    main()
