"""The peak of float32 products here: independent fused multiply-adds in registers, on every core."""

import ctypes
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import Isa, host_isa
from pliant.kernels.emit.values import vector
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.jit import Library

_CHAINS, _UNROLL, _TURNS = 12, 4, 4_000_000
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def peak_ir(isa: Isa) -> str:
    """A kernel whose unit is `_CHAINS * _UNROLL` fused multiply-adds of whole vectors, in `_CHAINS` sums."""
    module = Module(isa)
    with module.kernel("peak") as f:
        _, lo, hi, scratch = f.params
        floats = vector(f.lanes, "float")
        x, y = (f.load(f.at(scratch, i * f.lanes, "float"), floats) for i in range(2))
        with f.loop(lo, hi, carry=[x] * _CHAINS) as turn:
            sums = list(turn.carried)
            for _ in range(_UNROLL):
                sums = [f.fma(x, y, total) for total in sums]
            turn.carry(sums)
        for i, total in enumerate(turn.carried):
            f.store(total, f.at(scratch, i * f.lanes, "float"))
    return module.text()


def fma_peak(turns: int = 5) -> float:
    """The floating-point operations per second of all cores together: the median of `turns` measurements."""
    isa = host_isa()
    library = Library(isa, Path(tempfile.mkdtemp(prefix="pliant-bench-")))
    kernel = _KERNEL(library.load_function("peak", lambda: peak_ir(isa)))
    n_cores = len(os.sched_getaffinity(0))
    spaces = [aligned_bytes(1 << 14) for _ in range(n_cores)]
    for space in spaces:
        space[:] = 0
    rates = []
    with ThreadPoolExecutor(n_cores) as threads:
        for _ in range(turns):
            start_s = time.perf_counter()
            list(threads.map(lambda space: kernel(None, 0, _TURNS, space.ctypes.data), spaces))
            work = 2.0 * isa.lanes * _CHAINS * _UNROLL * _TURNS * n_cores
            rates.append(work / (time.perf_counter() - start_s))
    return median(rates)


if __name__ == "__main__":
    print(f"{fma_peak() / 1e9:.1f} GFLOP/s")
