"""The pool's native code: walk a table of kernels, share each one's units, park when idle.

One thread walks; the others help. The walker divides the units of a table entry into one contiguous range per
thread, so that a thread finds in its caches the data that it wrote in the previous entry: data written by
another core cost several times as much. For each range it publishes a ticket (sequence number << UNIT_BITS

units left). The thread that decrements a ticket by compare-and-swap owns those units. A thread takes units
from its own range first, then from other ranges. An entry is complete when all its units are done, so the
walker waits only for units that were taken, not for sleeping or late helpers.

A compare-and-swap that succeeds proves that the entry is unfinished until its taker reports, so values read
from it in between are current: the walker writes an entry only when the previous one is done.

On a busy machine the kernel may wake a helper on the walker's core, where the two alternate for milliseconds.
A helper that detects this removes that core from its affinity, and then restores all of the process's cores.
"""

import ctypes

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.system import thread_functions

UNIT_BITS = 28
_UNIT_MASK = (1 << UNIT_BITS) - 1
_SPINS_BEFORE_YIELD = 500


class TableEntry(ctypes.Structure):
    """One row of a table: `kernel(args, lo, hi, scratch)` over n_units, `grain` units at a time."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("n_units", ctypes.c_int64),
        ("grain", ctypes.c_int64),
    )


class UnitRange(ctypes.Structure):
    """One thread's range of the published entry, in a cache line of its own: the units before `limit`."""

    _fields_ = (
        ("ticket", ctypes.c_int64),
        ("limit", ctypes.c_int64),
        ("_pad", ctypes.c_int64 * 6),
    )


class PoolContext(ctypes.Structure):
    """State shared by walker and helpers; fields that one side writes often have their own cache line."""

    _fields_ = (
        ("done", ctypes.c_int64),
        ("_pad0", ctypes.c_int64 * 7),
        ("kernel", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("grain", ctypes.c_int64),
        ("sequence", ctypes.c_int64),
        ("scratch", ctypes.c_void_p),
        ("scratch_bytes", ctypes.c_int64),
        ("slots", ctypes.c_void_p),
        ("n_threads", ctypes.c_int64),
        ("spins", ctypes.c_int64),
        ("cpu", ctypes.c_int32),
        ("epoch", ctypes.c_int32),
        ("parked", ctypes.c_int32),
        ("stop", ctypes.c_int32),
        ("_pad1", ctypes.c_int32 * 10),
    )


def walker_ir(isa: Isa) -> str:
    """The module of `walk(ctx, table, n)`, `help(ctx, index)`, which ends after `stop(ctx)`, and `stop`.

    `walk_timed(ctx, table, n, times)` also writes the monotonic clock, as (seconds, nanoseconds), before
    the first entry and after each.
    """
    module = Module(isa)
    module.add(thread_functions(isa.architecture))
    parts = (_write_take, _write_work, _write_wake, _write_share, _write_step_aside)
    for write in (*parts, _write_walk, _write_help, _write_stop):
        write(module)
    _write_walk(module, is_timed=True)
    return module.text()


def _write_walk(module: Module, is_timed: bool = False) -> None:
    params = [("ctx", "ptr"), ("table", "ptr"), ("n", "i64")]
    name, more = ("walk_timed", [("times", "ptr")]) if is_timed else ("walk", [])
    with module.function(name, params + more) as f:
        ctx, table, n = f.params[:3]
        _exchange(f, "cpu", _current_cpu(f))
        if is_timed:
            f.call("write_time", "void", f.params[3])
        with f.each(0, n) as i:
            entry = f.at(table, i * ctypes.sizeof(TableEntry), "i8")
            kernel, args, units, grain = f.fields(entry, TableEntry, "kernel", "args", "n_units", "grain")
            with f.when(units > 0):
                is_shared = (units > grain) & (_load(f, "n_threads") > 1)

                def shared(entry: Value = entry, units: Value = units) -> list[Value]:
                    f.call("share", "void", ctx, entry)
                    f.call("work", "void", ctx, f.const(0))
                    _wait_until_done(f, units)
                    return []

                def alone(kernel: Value = kernel, args: Value = args, units: Value = units) -> list[Value]:
                    f.call(kernel, "void", args, f.const(0), units, _load(f, "scratch", "ptr"))
                    return []

                f.choose(is_shared, shared, alone)
            if is_timed:
                f.call("write_time", "void", f.at(f.params[3], (i + 1) * 2, "i64"))
        f.ret()


def _write_share(module: Module) -> None:
    """Publish an entry: one range per thread, or fewer if there are fewer grains."""
    with module.function("share", [("ctx", "ptr"), ("row", "ptr")], is_exported=False) as f:
        ctx, row = f.params
        kernel, args, units, grain = f.fields(row, TableEntry, "kernel", "args", "n_units", "grain")
        sequence = _load(f, "sequence") + 1
        for name, value in (("kernel", kernel), ("args", args), ("grain", grain), ("sequence", sequence)):
            _store(f, name, value)
        _store(f, "done", f.const(0))
        ranges = f.least(_load(f, "n_threads"), (units + grain - 1) // grain)
        with f.loop(0, ranges, carry=[f.const(0)]) as loop:
            low, high = loop.carried[0], units * (loop.index + 1) // ranges
            slot = _slot(f, loop.index)
            f.emit(f"store atomic {high}, {_slot_field(f, slot, 'limit')} release, align 8")
            ticket = (sequence << UNIT_BITS) | (high - low)
            f.emit(f"store atomic {ticket}, {_slot_field(f, slot, 'ticket')} release, align 8")
            loop.carry([high])
        # A helper that is about to park either sees its ticket or is visible in `parked`.
        f.emit("fence seq_cst")
        with f.when(_load(f, "parked", "i32").compare("ne", 0)):
            f.call("wake", "void", ctx)
        f.ret()


def _write_help(module: Module) -> None:
    with module.function("help", [("ctx", "ptr"), ("index", "i64")]) as f:
        ctx, index = f.params
        (patience,) = f.fields(ctx, PoolContext, "spins")
        with f.repeat([f.const(0)]) as loop:
            cpu = _current_cpu(f)
            with f.when((cpu >= 0) & _load(f, "cpu", "i32").compare("eq", cpu)):  # -1: not known
                f.call("step_aside", "void", ctx, cpu)

            def worked() -> list[Value]:
                f.call("work", "void", ctx, index)
                return [f.const(0), f.const(1, "i1")]

            def idled() -> list[Value]:
                f.pause()
                spins = loop.carried[0] + 1
                return f.choose(spins < patience, lambda: [spins, f.const(1, "i1")], lambda: parked(f))

            def parked(f: Function) -> list[Value]:
                _park(f, index)
                return [f.const(0), _load(f, "stop", "i32").compare("eq", 0)]

            spins, is_running = f.choose(_remaining_units(f, index) > 0, worked, idled)
            loop.repeat_if(is_running, [spins])
        f.ret()


def _write_stop(module: Module) -> None:
    with module.function("stop", [("ctx", "ptr")]) as f:
        _exchange(f, "stop", f.const(1, "i32"))
        f.call("wake", "void", f.params[0])
        f.ret()


def _write_work(module: Module) -> None:
    """Run the rest of the thread's range, then of the others'; report all at once."""
    with module.function("work", [("ctx", "ptr"), ("index", "i64")], is_exported=False) as f:
        ctx, index = f.params
        n = _load(f, "n_threads")
        with f.loop(0, n, carry=[f.const(0)]) as loop:
            owner = index + loop.index
            owner = f.select(owner < n, owner, owner - n)
            with f.repeat([loop.carried[0]]) as taking:
                took = f.call("take", "i64", ctx, index, owner)
                assert took is not None
                taking.repeat_if(_remaining_units(f, owner) > 0, [taking.carried[0] + took])
            loop.carry(taking.carried)
        with f.when(loop.carried[0] > 0):
            f.op(f"atomicrmw add {_at(f, 'done')}, {loop.carried[0]} seq_cst", "i64")
        f.ret()


def _write_take(module: Module) -> None:
    """Run one grain of a range; returns its number of units."""
    params = [("ctx", "ptr"), ("index", "i64"), ("owner", "i64")]
    with module.function("take", params, "i64", is_exported=False) as f:
        _, index, owner = f.params
        slot = _slot(f, owner)
        at = _slot_field(f, slot, "ticket")
        ticket = f.op(f"load atomic i64, {at} seq_cst, align 8", "i64")
        left = ticket & _UNIT_MASK
        with f.when(left.compare("eq", 0)):
            f.ret(f.const(0))
            f.place(f.label("unreached"))
        share = f.least(left, _load(f, "grain"))
        pair = f.op(f"cmpxchg {at}, {ticket}, {ticket - share} seq_cst seq_cst", "{ i64, i1 }")
        with f.when(f.op(f"extractvalue {pair}, 1", "i1")):
            limit = f.op(f"load atomic i64, {_slot_field(f, slot, 'limit')} seq_cst, align 8", "i64")
            first = limit - left
            scratch = f.at(_load(f, "scratch", "ptr"), index * _load(f, "scratch_bytes"), "i8")
            f.call(_load(f, "kernel", "ptr"), "void", _load(f, "args", "ptr"), first, first + share, scratch)
            f.ret(share)
            f.place(f.label("lost"))
        f.ret(f.const(0))


def _write_wake(module: Module) -> None:
    with module.function("wake", [("ctx", "ptr")], is_exported=False, attributes="noinline cold") as f:
        _exchange(f, "parked", f.const(0, "i32"))
        f.op(f"atomicrmw add {_at(f, 'epoch')}, i32 1 seq_cst", "i32")
        f.call("wake_all", "void", _at(f, "epoch"))
        f.ret()


def _write_step_aside(module: Module) -> None:
    """Leave `cpu`, at least 0, if the process may run elsewhere; tried once per walk."""
    params = [("ctx", "ptr"), ("cpu", "i32")]
    with module.function("step_aside", params, is_exported=False, attributes="noinline cold") as f:
        _exchange(f, "cpu", f.const(-1, "i32"))
        f.call("leave_cpu", "void", f.params[1])
        f.ret()


def _current_cpu(f: Function) -> Value:
    cpu = f.call("current_cpu", "i32")
    assert cpu is not None
    return cpu


def _park(f: Function, index: Value) -> None:
    """Sleep until the epoch changes, unless work or the stop arrived since the last check."""
    epoch = _load(f, "epoch", "i32")
    _exchange(f, "parked", f.const(1, "i32"))
    is_idle = _remaining_units(f, index).compare("eq", 0)
    with f.when(is_idle & _load(f, "stop", "i32").compare("eq", 0)):
        f.call("wait_while", "void", _at(f, "epoch"), epoch)


def _wait_until_done(f: Function, units: Value) -> None:
    """Spin until the units taken by others are done; yield the core if that takes long."""
    f.module.declare("sched_yield", "i32", ())
    with f.repeat([f.const(0)]) as loop:
        f.pause()
        spins = loop.carried[0] + 1
        with f.when(spins > _SPINS_BEFORE_YIELD):
            f.call("sched_yield", "i32")
        loop.repeat_if(_load(f, "done").compare("ne", units), [spins])


def _remaining_units(f: Function, owner: Value) -> Value:
    """The remaining units of a thread's range."""
    at = _slot_field(f, _slot(f, owner), "ticket")
    return f.op(f"load atomic i64, {at} seq_cst, align 8", "i64") & _UNIT_MASK


def _slot(f: Function, owner: Value) -> Value:
    return f.at(_load(f, "slots", "ptr"), owner * ctypes.sizeof(UnitRange), "i8")


def _slot_field(f: Function, slot: Value, name: str) -> Value:
    return f.at(slot, getattr(UnitRange, name).offset, "i8")


def _at(f: Function, name: str) -> Value:
    return f.at(f.params[0], getattr(PoolContext, name).offset, "i8")


def _load(f: Function, name: str, type_: str = "i64") -> Value:
    return f.op(f"load atomic {type_}, {_at(f, name)} seq_cst, align {4 if type_ == 'i32' else 8}", type_)


def _store(f: Function, name: str, value: Value) -> None:
    """Store with release order: visible no later than the ticket published after it."""
    f.emit(f"store atomic {value}, {_at(f, name)} release, align 8")


def _exchange(f: Function, name: str, value: Value) -> None:
    f.op(f"atomicrmw xchg {_at(f, name)}, {value} seq_cst", value.type)
