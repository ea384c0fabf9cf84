"""The pool: every unit once and in order, whoever takes it; idle means idle; two callers take turns."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import KernelError
from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import Isa, host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import CallTable, ThreadPool
from tests.kernels.kernel_call import address


class _Args(ctypes.Structure):
    _fields_ = (("x", ctypes.c_void_p), ("turns", ctypes.c_int64))


def _increment_ir(isa: Isa) -> str:
    """x[unit] += 1, after `turns` turns of an idle loop."""
    module = Module(isa)
    with module.kernel("increment") as f:
        x, turns = f.fields(f.params[0], _Args, "x", "turns")
        with f.each(f.params[1], f.params[2]) as unit:
            with f.loop(0, turns, carry=[f.const(1.0, "float")]) as loop:
                loop.carry([loop.carried[0] * 1.0000001])
            extra = f.cast("fptosi", loop.carried[0] * 1e-30, "i64")  # 0, but LLVM cannot know
            place = f.at(x, unit, "i64")
            f.store(f.load(place, "i64") + 1 + extra, place)
    return module.text()


def _next_ir(isa: Isa) -> str:
    """x[unit + 1] = x[unit] + 1: right only if the entry before has ended everywhere."""
    module = Module(isa)
    with module.kernel("copy_on") as f:
        x, n = f.fields(f.params[0], _Args, "x", "turns")
        with f.each(f.params[1], f.params[2]) as unit:
            f.store(f.load(f.at(x, unit, "i64"), "i64") + 1, f.at(x, unit + n, "i64"))
    return module.text()


def _scratch_ir(isa: Isa) -> str:
    """x[unit] = the scratch's address, which is written to."""
    module = Module(isa)
    with module.kernel("scratch") as f:
        (x,) = f.fields(f.params[0], _Args, "x")
        with f.each(f.params[1], f.params[2]) as unit:
            f.store(unit, f.params[3])
            f.store(f.cast("ptrtoint", f.params[3], "i64"), f.at(x, unit, "i64"))
    return module.text()


def _wait_ir(isa: Isa) -> str:
    """x[0] = 1; until x[1] is set, but for `turns` turns at most, give the core away; x[2] = x[1]."""
    module = Module(isa)
    module.declare("sched_yield", "i32", ())
    with module.kernel("wait") as f:
        x, turns = f.fields(f.params[0], _Args, "x", "turns")
        f.emit(f"store atomic i64 1, {x} seq_cst, align 8")
        answer = f.at(x, f.const(1), "i64")
        with f.repeat([f.const(0)]) as loop:
            f.call("sched_yield", "i32")
            taken = loop.carried[0] + 1
            is_answered = f.op(f"load atomic i64, {answer} seq_cst, align 8", "i64").compare("ne", 0)
            loop.repeat_if(is_answered.compare("eq", 0) & (taken < turns), [taken])
        f.store(f.load(answer, "i64"), f.at(x, f.const(2), "i64"))
    return module.text()


@pytest.fixture(scope="module")
def host(library_of: Callable[[Isa], Library]) -> Library:
    """The pool is the same on every row; the host's is enough."""
    return library_of(host_isa())


@pytest.fixture(params=[1, 2, 3, 8])
def pool(request: pytest.FixtureRequest, host: Library) -> Iterator[ThreadPool]:
    with ThreadPool(request.param, host, 4096) as pool:
        yield pool


@pytest.fixture(scope="module")
def increment(host: Library) -> int:
    return address(host, "increment", _increment_ir)


@pytest.mark.parametrize(
    ("units", "grain"), [(1, 1), (7, 1), (7, 3), (64, 64), (64, 100), (1000, 1), (1001, 10), (0, 1)]
)
def test_every_unit_runs_exactly_once(pool: ThreadPool, increment: int, units: int, grain: int) -> None:
    """A unit lost is a wrong answer; a unit run twice by two threads is a race."""
    x = np.zeros(1100, np.int64)
    table = CallTable()
    for _ in range(20):
        table.add(increment, _Args(x.ctypes.data, 0), units, grain)
    for _ in range(10):
        pool.walk(table)
    assert (x[:units] == 200).all()
    assert (x[units:] == 0).all()


def test_an_entry_begins_when_the_one_before_has_ended(pool: ThreadPool, host: Library) -> None:
    """Layers read what earlier steps wrote, on whichever thread: 200 steps, each on the one before."""
    n, steps = 64, 200
    x = np.zeros(n * (steps + 1), np.int64)
    table = CallTable()
    for step in range(steps):
        args = _Args(x.ctypes.data + 8 * n * step, n)
        table.add(address(host, "copy_on", _next_ir), args, n, 1 + step % 5)
    for _ in range(5):
        x[:] = 0
        pool.walk(table)
        assert (x.reshape(steps + 1, n) == np.arange(steps + 1)[:, None]).all()


def test_several_threads_really_share_the_work(host: Library, increment: int) -> None:
    """Each thread has its own scratch, aligned to 64 bytes; a long entry sees at least two of them."""
    n = 4000
    x, y = np.zeros(n, np.int64), np.zeros(n, np.int64)
    table = CallTable()
    table.add(address(host, "scratch", _scratch_ir), _Args(x.ctypes.data), n, 1)
    table.add(increment, _Args(y.ctypes.data, 2000), n, 1)
    with ThreadPool(2, host, 100) as pool:
        assert pool.scratch_bytes == 128
        seen: set[int] = set()
        give_up_s = time.monotonic() + 60.0  # another process may have the second core for a while
        while len(seen) < 2 and time.monotonic() < give_up_s:
            pool.walk(table)
            seen |= set(x.tolist())
    assert len(seen) == 2
    assert all(at % 64 == 0 for at in seen)
    assert max(seen) - min(seen) == 128


def test_a_thread_takes_units_that_are_neighbours(host: Library) -> None:
    """What another core wrote is read slowly: each of two threads has its half of every entry."""
    n = 64
    x = np.zeros(n, np.int64)
    table = CallTable()
    table.add(address(host, "scratch", _scratch_ir), _Args(x.ctypes.data), n, 1)
    with ThreadPool(2, host, 64) as pool:
        is_halved = False
        give_up_s = time.monotonic() + 60.0  # a helper that is late loses units to the walker
        while not is_halved and time.monotonic() < give_up_s:
            pool.walk(table)
            is_halved = len({*x[: n // 2]}) == len({*x[n // 2 :]}) == 1 and x[0] < x[-1]
    assert is_halved


def test_an_entry_of_one_grain_stays_on_the_callers_thread(host: Library) -> None:
    """Handing it over would take longer than running it."""
    x = np.zeros(8, np.int64)
    table = CallTable()
    table.add(address(host, "scratch", _scratch_ir), _Args(x.ctypes.data), 8, 8)
    with ThreadPool(3, host, 64) as pool:
        for _ in range(100):
            pool.walk(table)
            assert set(x.tolist()) == {pool.scratch.ctypes.data}


def test_scratch_grows_when_asked_and_never_shrinks(host: Library) -> None:
    """A second model in the process may need more than the first."""
    x = np.zeros(8, np.int64)
    table = CallTable()
    table.add(address(host, "scratch", _scratch_ir), _Args(x.ctypes.data), 8, 8)
    with ThreadPool(1, host, 64) as pool:
        pool.reserve(1 << 20)
        pool.reserve(64)
        pool.walk(table)
        assert pool.scratch_bytes == 1 << 20


def test_idle_workers_cost_no_cpu_time(host: Library, increment: int) -> None:
    """A spinning worker starves the reading thread, and the battery."""
    x = np.zeros(64, np.int64)
    table = CallTable()
    table.add(increment, _Args(x.ctypes.data, 100), 64, 1)
    with ThreadPool(3, host) as pool:
        pool.walk(table)
        parked = threading.Event()
        parked.wait(0.05)  # time to park: what is measured is the time after it
        before = time.process_time()
        parked.wait(0.25)
        assert time.process_time() - before < 0.02


def test_parked_workers_come_back(host: Library, increment: int) -> None:
    """Spins of zero park at once: every walk must then wake or do without, and lose nothing."""
    x = np.zeros(16, np.int64)
    table = CallTable()
    for _ in range(3):
        table.add(increment, _Args(x.ctypes.data, 50), 16, 1)
    with ThreadPool(4, host, idle_s=0.0) as pool:
        for _ in range(2000):
            pool.walk(table)
    assert (x == 6000).all()


def test_two_callers_take_turns(pool: ThreadPool, increment: int) -> None:
    """Two models may share a pool from two threads; increments are not atomic, so an overlap would show."""
    x = np.zeros(50, np.int64)
    table = CallTable()
    for _ in range(10):
        table.add(increment, _Args(x.ctypes.data, 10), 50, 3)
    callers = [threading.Thread(target=lambda: [pool.walk(table) for _ in range(100)]) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert (x == 3000).all()


def test_other_python_threads_run_during_a_walk(host: Library) -> None:
    """The GIL is dropped: the io lane reads while kernels compute. Here a walk cannot end well without it."""
    x = np.zeros(3, np.int64)
    table = CallTable()
    table.add(address(host, "wait", _wait_ir), _Args(x.ctypes.data, 20_000_000), 1, 1)
    is_over = threading.Event()

    def answer() -> None:
        while not x[0] and not is_over.is_set():
            pass
        x[1] = 1

    thread = threading.Thread(target=answer)
    with ThreadPool(1, host) as pool:
        thread.start()
        pool.walk(table)
        is_over.set()
        thread.join()
    assert x[2] == 1, "answered while it ran"


def test_entries_can_be_resized_between_walks(host: Library, increment: int) -> None:
    """Another sequence length is another number of rows in the same table."""
    x = np.zeros(100, np.int64)
    table = CallTable()
    table.add(increment, _Args(x.ctypes.data, 0), 10)
    with ThreadPool(2, host) as pool:
        pool.walk(table)
        table.set_shares(np.int64([[100, 7]]))
        pool.walk(table)
    assert (x[:10] == 2).all()
    assert (x[10:] == 1).all()


def test_a_timed_walk_is_a_walk_with_a_clock(pool: ThreadPool, increment: int) -> None:
    """Times of entries that follow each other never go back; an entry of much work takes longer."""
    x = np.zeros(64, np.int64)
    table = CallTable()
    for turns in (0, 20_000, 0):
        table.add(increment, _Args(x.ctypes.data, turns), 64, 1)
    ends_s = pool.walk_timed(table)
    assert (x == 3).all()
    assert ends_s[0] == 0.0
    assert len(ends_s) == 4
    assert (np.diff(ends_s) > 0).all()
    assert ends_s[2] - ends_s[1] > 1e-4  # 1.28 million dependent multiplications on at most 8 threads
    assert pool.walk_timed(CallTable()).tolist() == [0.0]


def test_a_table_keeps_its_arguments_and_grows(host: Library, increment: int) -> None:
    """The native side holds addresses only: a collected argument would be read after free."""
    x = np.zeros(1, np.int64)
    table = CallTable()
    for _ in range(1000):
        table.add(increment, _Args(x.ctypes.data, 0), 1)
    gc.collect()
    with ThreadPool(1, host) as pool:
        pool.walk(table)
    assert x[0] == table.n_entries == 1000


def test_a_pool_of_one_has_no_worker_and_a_closed_one_has_none_left(host: Library) -> None:
    """Threads that outlive their pool add up in a long-lived service."""
    before = threading.active_count()
    one = ThreadPool(1, host)
    assert threading.active_count() == before
    four = ThreadPool(4, host)
    assert threading.active_count() == before + 3
    four.close()
    four.close()
    one.close()
    assert threading.active_count() == before
    with pytest.raises(KernelError, match="closed"):
        four.walk(CallTable())


def test_a_forgotten_pool_ends_its_workers(host: Library) -> None:
    """No one closes what an exception dropped."""
    before = threading.active_count()
    pool = ThreadPool(3, host)
    pool.walk(CallTable())
    del pool
    gc.collect()
    assert threading.active_count() == before


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_workers_of_its_own(host: Library, increment: int) -> None:
    """Workers do not survive a fork; nothing may wait for them, and the child is not slower for it."""
    x = np.zeros(64, np.int64)
    table = CallTable()
    table.add(increment, _Args(x.ctypes.data, 100), 64, 1)
    with ThreadPool(2, host) as pool:
        pool.walk(table)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            pool.walk(table)
            is_served = all(worker.is_alive() for worker in pool.workers)
            pool.close()
            os.write(write, bytes([int((x == 2).all()), is_served, *(w.is_alive() for w in pool.workers)]))
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        assert os.read(read, 3) == b"\x01\x01\x00"
        os.close(read)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_closed_pool_stays_closed_in_a_forked_child(host: Library) -> None:
    """It must not come to life by being asked."""
    pool = ThreadPool(2, host)
    pool.close()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pool.walk(CallTable())
        except KernelError:
            os.write(write, b"\x01")
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 1) == b"\x01"
    os.close(read)


def test_a_pool_without_threads_is_refused(host: Library) -> None:
    """Zero threads would walk nothing and report success."""
    with pytest.raises(KernelError, match="0 threads"):
        ThreadPool(0, host)


def test_a_program_may_end_without_closing_its_pool(kernel_cache: Path) -> None:
    """A script that forgets must neither hang nor crash in its last moment."""
    program = (
        "import sys; from pathlib import Path\n"
        "from pliant.kernels.emit.isa import host_isa; from pliant.kernels.runtime.jit import Library\n"
        "from pliant.kernels.runtime.thread_pool import CallTable, ThreadPool\n"
        "pool = ThreadPool(3, Library(host_isa(), Path(sys.argv[1])))\n"
        "pool.walk(CallTable())\n"
    )
    subprocess.run([sys.executable, "-c", program, kernel_cache], check=True, timeout=60)


def test_a_process_bound_to_one_core_still_finishes(host: Library, increment: int) -> None:
    """Helpers have nowhere to step aside to; taking turns is then the only way."""
    allowed = os.sched_getaffinity(0)
    x = np.zeros(64, np.int64)
    table = CallTable()
    for _ in range(20):
        table.add(increment, _Args(x.ctypes.data, 100), 64, 1)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with ThreadPool(3, host) as pool:
            for _ in range(20):
                pool.walk(table)
    finally:
        os.sched_setaffinity(0, allowed)
    assert (x == 400).all()


def test_stepping_aside_gives_the_core_back(host: Library, increment: int) -> None:
    """A helper leaves the walker's core for a moment only: its own affinity is the process's again."""
    x = np.zeros(64, np.int64)
    table = CallTable()
    table.add(increment, _Args(x.ctypes.data, 2000), 64, 1)
    with ThreadPool(3, host, idle_s=0.0) as pool:
        for _ in range(300):
            pool.walk(table)
        for worker in pool.workers:
            assert worker.native_id is not None
            until_s = time.monotonic() + 30  # the core it steps aside to may be busy when the last walk ends
            while os.sched_getaffinity(worker.native_id) != os.sched_getaffinity(0):
                assert time.monotonic() < until_s
                os.sched_yield()
