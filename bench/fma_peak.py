"""The peak of products in registers; that of float32 on all cores: fused multiply-adds."""

import ctypes
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa, host_isa
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.jit import Library

CHAINS, UNROLL = 12, 4
_TURNS = 4_000_000
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def peak_ir(isa: Isa, element: str, add: Callable[[Function, Value, Value, Value], Value]) -> str:
    """A kernel whose unit is `CHAINS * UNROLL` times `add(f, total, x, y)` of whole vectors of `element`.

    There are `CHAINS` independent sums, so that no instruction waits for another.
    """
    module = Module(isa)
    with module.kernel("peak") as f:
        _, lo, hi, scratch = f.params
        whole = vector(f.lanes, element)
        x, y = (f.load(f.at(scratch, i * f.lanes, element), whole) for i in range(2))
        with f.loop(lo, hi, carry=[x] * CHAINS) as turn:
            sums = list(turn.carried)
            for _ in range(UNROLL):
                sums = [add(f, total, x, y) for total in sums]
            turn.carry(sums)
        for i, total in enumerate(turn.carried):
            f.store(total, f.at(scratch, i * f.lanes, element))
    return module.text()


def fma_peak(turns: int = 5) -> float:
    """The floating-point operations per second of all cores together: the median of `turns` measurements."""
    isa = host_isa()
    library = Library(isa, Path(tempfile.mkdtemp(prefix="pliant-bench-")))
    kernel = _KERNEL(library.load_function("peak", lambda: peak_ir(isa, "float", _multiply_add)))
    n_cores = len(os.sched_getaffinity(0))
    spaces = [aligned_bytes(1 << 14) for _ in range(n_cores)]
    for space in spaces:
        space[:] = 0
    rates = []
    with ThreadPoolExecutor(n_cores) as threads:
        for _ in range(turns):
            start_s = time.perf_counter()
            list(threads.map(lambda space: kernel(None, 0, _TURNS, space.ctypes.data), spaces))
            work = 2.0 * isa.lanes * CHAINS * UNROLL * _TURNS * n_cores
            rates.append(work / (time.perf_counter() - start_s))
    return median(rates)


def _multiply_add(f: Function, total: Value, x: Value, y: Value) -> Value:
    return f.fma(x, y, total)


if __name__ == "__main__":
    print(f"{fma_peak() / 1e9:.1f} GFLOP/s")
