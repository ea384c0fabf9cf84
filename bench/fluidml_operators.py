"""Figures 8 to 10 and 13: the time of a model by operator: plain loops, reordered loops, and pliant's
kernels.

Each operator is measured alone, processor seconds of one thread, summed over the model. `i-j-k` is the
schedule `none`; `best plain order` is what the paper calls loop reordering (i-j-k or i-k-j, whichever is
faster, no tiles); tiles and Winograd are ours and not in the paper.
"""

import ctypes
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from fluidml_models import Subject
from pliant.api import compile_onnx as compiled
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.onnx.onnx_file import open_onnx
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.graph.array_stage import open_image
from pliant.run.graph.model_options import ModelOptions
from pliant.run.graph.schedule_graph import GraphScheduler, OperatorLayoutTimes
from runtimes import THREADS

_SHAPES = ((128, 768, 768), (128, 768, 3072), (128, 3072, 768))
_NAIVE_C = """
void naive(float *restrict c, const float *restrict a, const float *restrict b, long rows, long depth, long n)
{
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < n; j++) {
            float sum = 0;
            for (long k = 0; k < depth; k++) sum += a[i * depth + k] * b[k * n + j];
            c[i * n + j] = sum;
        }
}
"""


def measure(subject: Subject, cache: Path) -> list[dict[str, object]]:
    """The six operators with the largest share of the default layouts' time."""
    library, pool = compiled.shared_pool(THREADS, cache)
    options = ModelOptions({}, without=("channels_last", "winograd"))
    graph = OnnxSession(open_onnx(subject.file), pool, library, options, ahead=False).graph(subject.arrays)
    found = GraphScheduler("exact", pool, library).time_operators(graph)
    plain, ours = sum(row.loops_s for row in found), sum(row.chosen_s for row in found)
    ordered = sorted(found, key=lambda row: -row.default_s)[:6]
    return [_row(subject.name, row, plain, ours) for row in ordered]


def _row(model: str, row: OperatorLayoutTimes, plain_s: float, ours_s: float) -> dict[str, object]:
    reordered_s = row.reordered_s
    return {
        "model": model,
        "operator": row.op,
        "n": row.n,
        "share, plain": row.loops_s / plain_s,
        "share, exact": row.chosen_s / ours_s,
        "i-j-k [ms]": 1e3 * row.loops_s if row.has_loops else "",
        "best plain order [ms]": 1e3 * reordered_s if row.has_loops else "",
        "default layouts [ms]": 1e3 * row.default_s,
        "exact layouts [ms]": 1e3 * row.chosen_s,
        "reordering saves": 1.0 - reordered_s / row.loops_s if row.has_loops else "",
        "tiles save beside that": 1.0 - row.default_s / reordered_s if row.has_loops else "",
        "layouts and Winograd save": 1.0 - row.chosen_s / row.default_s if row.default_s else 0.0,
    }


def plain_loops(cache: Path, n_shapes: int = len(_SHAPES)) -> list[dict[str, object]]:
    """Our i-j-k loops beside the C compiler's, BERT's products on one thread, to show that `none` is a fair
    baseline.
    """
    if shutil.which("cc") is None:
        return [{"product": "no C compiler here"}]
    folder = cache / "naive"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "naive.c").write_text(_NAIVE_C)
    command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "naive.c", "-o", "naive.so"]
    subprocess.run(command, cwd=folder, check=True)
    naive = ctypes.CDLL(str(folder / "naive.so")).naive
    naive.argtypes, naive.restype = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3, None
    return [_beside(naive, cache, *shape) for shape in _SHAPES[:n_shapes]]


def _beside(naive: "ctypes._FuncPointer", cache: Path, rows: int, depth: int, n: int) -> dict[str, object]:
    library, _ = compiled.shared_pool(THREADS, cache)
    random = np.random.default_rng(0)
    a = random.standard_normal((rows, depth), np.float32)
    b = random.standard_normal((depth, n), np.float32)
    c = np.empty((rows, n), np.float32)
    shapes = {"a": a.shape, "b": b.shape, "y": c.shape}
    types = {x: TensorType("float32", shape) for x, shape in shapes.items()}
    millis = []
    with ThreadPool(1, library) as pool:
        for op, attributes in (
            ("LoopMatMul", {"order": "ijk"}),
            ("LoopMatMul", {"order": "ikj"}),
            ("MatMul", {}),
        ):
            graph = Graph((Node(op, ("a", "b"), ("y",), dict(attributes)),), ("a",), ("y",), types, {"b": b})
            session = open_image(make_image(graph, Target(library.isa)), pool, library)
            held = session.run({"a": a})
            millis.append(_median_ms(session.repeat))
            assert np.allclose(held["y"], a @ b, rtol=1e-3, atol=1e-2), op
    theirs = _median_ms(lambda: naive(c.ctypes.data, a.ctypes.data, b.ctypes.data, rows, depth, n))
    assert np.allclose(c, a @ b, rtol=1e-3, atol=1e-2)
    return {
        "product": f"{rows} x {depth} x {n}",
        "i-j-k, cc -O3 -march=native [ms]": theirs,
        "i-j-k, ours [ms]": millis[0],
        "ours / cc": millis[0] / theirs,
        "i-k-j, ours [ms]": millis[1],
        "tiled, ours [ms]": millis[2],
    }


def _median_ms(run: Callable[[], object], n: int = 3) -> float:
    taken = []
    for _ in range(n):
        start = time.thread_time()
        run()
        taken.append(time.thread_time() - start)
    return 1e3 * median(taken)
