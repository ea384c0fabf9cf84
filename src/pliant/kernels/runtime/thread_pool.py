"""Threads that share the work of kernels, and sleep when idle."""

import ctypes
import threading
import weakref
from time import perf_counter
from typing import final

import numpy as np

from pliant.arrays import Float64, UInt8
from pliant.errors import KernelError
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.call_table import CallTable
from pliant.kernels.runtime.fork_safe_lock import ForkSafeLock
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.walker import PoolContext, UnitRange, walker_ir

__all__ = ["CallTable", "ThreadPool"]

DEFAULT_SCRATCH_BYTES = 1 << 20
IDLE_S = 120e-6
"""The time that an idle worker spins before it parks: it covers operators that run on one thread, and the
time between two layers. Waking a parked worker takes longer, most of all if a virtual core has to be
rescheduled.
"""
_TRIAL_SPINS, _N_TRIALS = 500, 3

_CACHE_LINE = 64
_WALK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_WALK_TIMED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
_HELP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_STOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@final
class ThreadPool:
    """`n_threads` threads, the caller's included, that walk tables together; close it or use `with`.

    `walk` releases the GIL for the whole table. Concurrent walks are serialised. Workers spin for some
    microseconds after work, then sleep on a futex; with one thread there are no workers. Each thread has its
    own `scratch_bytes`, aligned to 64 bytes.

    Workers do not survive a fork: the child starts its own at its first walk.
    """

    def __init__(
        self,
        n_threads: int,
        library: Library,
        scratch_bytes: int = DEFAULT_SCRATCH_BYTES,
        idle_s: float = IDLE_S,
    ) -> None:
        if n_threads < 1:
            raise KernelError(f"a pool of {n_threads} threads cannot run anything; give at least 1.")
        self.n_threads = n_threads
        self._memory = aligned_bytes(ctypes.sizeof(PoolContext) + n_threads * ctypes.sizeof(UnitRange))
        self._memory[:] = 0
        self._context = PoolContext.from_address(self._memory.ctypes.data)
        self._context.n_threads = n_threads
        self._context.slots = self._memory.ctypes.data + ctypes.sizeof(PoolContext)
        self._address = ctypes.addressof(self._context)
        self._scratch_bytes = -1
        self._mutex = ForkSafeLock()
        self._process = self._mutex.process
        code = library.load_generated({"walker": lambda: walker_ir(library.isa)})["walker"]
        self._walk, self._walk_timed = _WALK(code["walk"]), _WALK_TIMED(code["walk_timed"])
        self.reserve(scratch_bytes)
        self._help, self._stop = _HELP(code["help"]), _STOP(code["stop"])
        self._context.spins = round(idle_s / _measure_spin_s(self._help))
        self._start()

    def __enter__(self) -> "ThreadPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def scratch_bytes(self) -> int:
        """Scratch bytes of each thread."""
        return self._scratch_bytes

    @property
    def workers(self) -> tuple[threading.Thread, ...]:
        """The threads besides the caller's; a forked child starts its own at its first walk."""
        return tuple(self._workers)

    @property
    def scratch(self) -> UInt8[np.ndarray, " n"]:
        """The scratch of all threads, for measurement."""
        return self._scratch

    def reserve(self, scratch_bytes: int) -> None:
        """Grow every thread's scratch to at least `scratch_bytes`; its contents are lost."""
        with self._mutex.lock:
            if scratch_bytes <= self._scratch_bytes:
                return
            n_bytes = aligned_scratch(scratch_bytes)
            self._scratch = aligned_bytes(self.n_threads * n_bytes)
            self._context.scratch = self._scratch.ctypes.data
            self._context.scratch_bytes = self._scratch_bytes = n_bytes

    def walk(self, table: CallTable) -> None:
        """Run all entries in order, each after the one before it has ended on all threads."""
        with self._mutex.lock:
            if self._context.stop or self._process != self._mutex.process:
                self._check_open()
            self._walk(self._address, table.address, table.n_entries)

    def walk_timed(self, table: CallTable) -> Float64[np.ndarray, " ends"]:
        """As `walk`; seconds from the start to the first entry, which is 0, and to the end of each."""
        times = np.zeros((table.n_entries + 1, 2), np.int64)
        with self._mutex.lock:
            self._check_open()
            self._walk_timed(self._address, table.address, table.n_entries, times.ctypes.data)
        times -= times[0].copy()
        ends_s: np.ndarray = times[:, 0] + times[:, 1] * 1e-9
        return ends_s

    def close(self) -> None:
        """Stop the workers and wait for them; safe to call twice."""
        with self._mutex.lock:
            self._finalizer()

    def _check_open(self) -> None:
        """Raise KernelError once closed; in a forked child, start its workers first."""
        if not self._finalizer.alive:
            raise KernelError("this pool is closed; open another one to run kernels.")
        if self._process != self._mutex.process:
            self._process = self._mutex.process
            self._finalizer.detach()
            # Discard the parent's unfinished walk.
            self._memory[ctypes.sizeof(PoolContext) :] = 0
            self._context.parked = 0
            self._context.scratch = self._scratch.ctypes.data  # the parent may have been replacing it
            self._start()

    def _start(self) -> None:
        self._workers = [
            threading.Thread(
                target=_run_worker,
                args=(self._help, self._address, i, self._memory),
                name=f"pliant-{i}",
                daemon=True,
            )
            for i in range(1, self.n_threads)
        ]
        for worker in self._workers:
            worker.start()
        self._finalizer = weakref.finalize(self, _stop_workers, self._stop, self._address, self._workers)


def _run_worker(helper: "ctypes._FuncPointer", context: int, index: int, memory: np.ndarray) -> None:
    """Run a worker. It references the context's memory but not the pool, so that a dropped pool is
    collected.
    """
    helper(context, index)


def _measure_spin_s(helper: "ctypes._FuncPointer") -> float:
    """Seconds per iteration of an idle worker's loop: a `pause` takes 10 ns on some CPUs and 60 ns on
    others.
    """
    memory = aligned_bytes(ctypes.sizeof(PoolContext) + 2 * ctypes.sizeof(UnitRange))
    memory[:] = 0
    context = PoolContext.from_address(memory.ctypes.data)
    context.slots = memory.ctypes.data + ctypes.sizeof(PoolContext)
    context.spins, context.stop = _TRIAL_SPINS, 1
    took_s = []
    for _ in range(_N_TRIALS):
        start_s = perf_counter()
        helper(memory.ctypes.data, 1)  # without work and with the stop flag set
        took_s.append(perf_counter() - start_s)
    return min(took_s) / _TRIAL_SPINS


def _stop_workers(stop: "ctypes._FuncPointer", context: int, workers: list[threading.Thread]) -> None:
    stop(context)
    for worker in workers:
        worker.join()


def aligned_scratch(scratch_bytes: int) -> int:
    """The bytes that a pool has for `scratch_bytes` on one thread: whole cache lines."""
    return -(-scratch_bytes // _CACHE_LINE) * _CACHE_LINE
