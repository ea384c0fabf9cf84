"""The CPU's clock rate from a chain of operations that take one cycle each.

The rate that the system reports may be nominal (a virtual machine reported 2.45 GHz and ran at 3.24), or
missing.
"""

import ctypes
import time
from collections.abc import Callable

from pliant.kernels.emit.builder import Module
from pliant.kernels.runtime.jit import Library

_NAME = "pliant_chain"
_CHAIN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_PER_TURN = 16
_TURNS = 25_000
_TRIES = 7


def calibrated_frequency(library: Library, clock: Callable[[], float] = time.perf_counter) -> float:
    """Measure f_i (Hepti, Table 1a) in cycles per second; takes about 5 ms.

    A 64-bit exclusive or and a 64-bit addition take one cycle each on every CPU that pliant generates code
    for, each depends on the previous one, and no compiler shortens the chain. The fastest runs of two chain
    lengths are subtracted, which removes the cost of the call and of interruptions.
    """
    chain = _CHAIN(library.load_function(_NAME, lambda: _chain_ir(library)))

    def seconds(turns: int) -> float:
        start_s = clock()
        chain(turns, 3, 5)
        return clock() - start_s

    seconds(_TURNS)  # wakes the core
    short_s = min(seconds(_TURNS) for _ in range(_TRIES))
    long_s = min(seconds(3 * _TURNS) for _ in range(_TRIES))
    return 2 * _TURNS * _PER_TURN / max(long_s - short_s, 1e-9)


def _chain_ir(library: Library) -> str:
    """`pliant_chain(turns, a, b)`: repeats x = (x ^ a) + b; a and b are known only at run time."""
    module = Module(library.isa)
    with module.function(_NAME, [("turns", "i64"), ("a", "i64"), ("b", "i64")], "i64") as f:
        turns, a, b = f.params
        with f.loop(0, turns, carry=[a]) as turn:
            x = turn.carried[0]
            for _ in range(_PER_TURN // 2):
                x = (x ^ a) + b
            turn.carry([x])
        f.ret(turn.carried[0])
    return module.text()
