"""Table 5: memory allocations per run on all threads, counted by a preloaded library.

pliant is measured as the C library of `--emit c`, whose runs must not allocate, and from Python as users run
it; the peers from Python, with preallocated outputs if they support it. Allocations from a runtime's own
arena, without calls of the C library, are not counted.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fluidml_models import Subject
from pliant.compiler.aot.ahead_of_time import write_c
from pliant.compiler.executable.image import Image
from runtimes import RUNTIMES, THREADS

HERE = Path(__file__).parent
_WARM = 3
Run = Callable[[], object]


def measure(
    subject: Subject, image: Image, expected: np.ndarray, runs: int, peers: tuple[str, ...]
) -> dict[str, object]:
    """A model's row: allocations in the C program, then per run in Python, ours and the peers'."""
    if shutil.which("cc") is None:
        return {"model": subject.name, "runs": "no C compiler here"}
    with TemporaryDirectory() as folder:
        counter = build_counter(Path(folder))
        row: dict[str, object] = {"model": subject.name, "runs": runs}
        row |= _in_c(subject, image, expected, runs, counter)
        for name in ("pliant", *peers):
            said = _in_python(name, subject, runs, counter) if find_spec(name) else "not installed"
            row[f"{name} in Python, a run"] = said
    return row


def build_counter(folder: Path) -> Path:
    """The library to preload, compiled into `folder`."""
    counter = folder / "libcounter.so"
    command = ["cc", "-O2", "-shared", "-fPIC", str(HERE / "counter.c"), "-o", str(counter), "-ldl"]
    subprocess.run(command, check=True)
    return counter


def _in_c(
    subject: Subject, image: Image, expected: np.ndarray, runs: int, counter: Path
) -> dict[str, object]:
    out = counter.parent / "c"
    emitted = write_c(image, "model", out)
    assert emitted.library, emitted.reason
    shutil.copy(HERE / "counted.c", out)
    link = ["-L.", "-lmodel", "-Wl,-rpath,$ORIGIN", "-o", "counted"]
    subprocess.run(["cc", "-std=gnu11", "-O2", "counted.c", *link], cwd=out, check=True)
    arrays = subject.arrays
    inputs = []
    for x in image.inputs:
        (out / f"{x}.bin").write_bytes(np.ascontiguousarray(arrays[x]).tobytes())
        inputs.append(f"{x}.bin")
    command = ["./counted", "model.safetensors", str(runs), "y.bin", *inputs]
    done = subprocess.run(
        command, cwd=out, env=_preloaded(counter), check=True, capture_output=True, text=True
    )
    counts = json.loads(done.stdout)
    answer = np.frombuffer((out / "y.bin").read_bytes(), np.float32).reshape(expected.shape)
    return {
        "C library, opening": counts["before"],
        "C library, all runs": counts["during"],
        "C library, largest difference from onnxruntime": float(np.abs(answer - expected).max()),
    }


def _in_python(runtime: str, subject: Subject, runs: int, counter: Path) -> float | str:
    words = [sys.executable, __file__, runtime, str(subject.file), str(subject.feeds), str(runs)]
    done = subprocess.run(words, env=_preloaded(counter), capture_output=True, text=True, check=False)
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1][:80]}"
    return float(done.stdout.splitlines()[-1])


def _preloaded(counter: Path) -> dict[str, str]:
    return {**os.environ, "LD_PRELOAD": str(counter)}


def _main() -> None:
    """`RUNTIME FILE FEEDS RUNS`, the counter preloaded: prints allocations a run."""
    runtime, file, feeds, runs = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    with np.load(feeds) as stored:
        given = {x: stored[x] for x in stored.files}
    makers: dict[str, Callable[[Path, Mapping[str, np.ndarray]], Run]] = {
        "pliant": _pliant,
        "onnxruntime": _onnxruntime,
    }
    run = makers[runtime](file, given) if runtime in makers else RUNTIMES[runtime](file, given, THREADS, None)
    for _ in range(_WARM):
        run()
    count = ctypes.CDLL(None).allocations
    count.restype = ctypes.c_long
    before = count()
    for _ in range(runs):
        run()
    print((count() - before) / runs)


def _pliant(path: Path, given: Mapping[str, np.ndarray]) -> Run:
    """Outputs are written into existing arrays."""
    import pliant

    session = pliant.compile(path, threads=THREADS)
    out = session.run(given)
    return lambda: session.run(given, out)


def _onnxruntime(path: Path, given: Mapping[str, np.ndarray]) -> Run:
    """Inputs and outputs are bound to existing arrays, so that few allocations of Python are counted."""
    import onnxruntime

    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads, chosen.inter_op_num_threads = THREADS, 1
    session: Any = onnxruntime.InferenceSession(str(path), chosen, providers=["CPUExecutionProvider"])
    names = [y.name for y in session.get_outputs()]
    known = {x.name for x in session.get_inputs()}
    own = {x: a for x, a in given.items() if x in known}
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(y) for y in session.run(names, own)]
    binding = session.io_binding()
    for x, a in own.items():
        binding.bind_cpu_input(x, a)
    for name, value in zip(names, values, strict=True):
        binding.bind_ortvalue_output(name, value)
    return lambda: session.run_with_iobinding(binding)


if __name__ == "__main__":
    _main()
