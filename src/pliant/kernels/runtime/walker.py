"""The pool's native code: walk a table of kernels, share each one's units, park when idle.

One thread walks; the others help. For every table entry the walker publishes kernel, args, limit and
grain, then a ticket (sequence number << UNIT_BITS | units left). Whoever lowers the ticket by
compare-and-swap owns those units; an entry is over when as many units are done as it has. A helper
that sleeps or is late is therefore never waited for: only units someone took are.

A compare-and-swap that succeeds proves that the entry is unfinished until its taker reports, so that
what is read of it in between is current: the walker writes an entry only when the last one is done.

On a busy machine the kernel wakes a helper on the walker's own core, where the two take turns for
milliseconds. A helper that finds itself there steps aside: it leaves that core, then takes all of the
process's cores again.
"""

import ctypes
from dataclasses import dataclass

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value

UNIT_BITS = 28
_UNIT_MASK = (1 << UNIT_BITS) - 1
_SPINS_BEFORE_YIELD = 500
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129


@dataclass(frozen=True, slots=True)
class _SystemCalls:
    """Linux's numbers on one architecture."""

    futex: int
    set_affinity: int
    get_affinity: int


_X86_64, _AARCH64 = _SystemCalls(202, 203, 204), _SystemCalls(98, 122, 123)
_CLOCK_MONOTONIC = 1
_CPU_SET_BYTES = 1024 // 8
_EVERYONE = 0x7FFFFFFF


class Entry(ctypes.Structure):
    """One row of a table: `kernel(args, lo, hi, scratch)` over n_units, `grain` units at a time."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("n_units", ctypes.c_int64),
        ("grain", ctypes.c_int64),
    )


class Context(ctypes.Structure):
    """What walker and helpers share; what one side writes often has a cache line of its own."""

    _fields_ = (
        ("ticket", ctypes.c_int64),
        ("_pad0", ctypes.c_int64 * 7),
        ("done", ctypes.c_int64),
        ("_pad1", ctypes.c_int64 * 7),
        ("kernel", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("limit", ctypes.c_int64),
        ("grain", ctypes.c_int64),
        ("scratch", ctypes.c_void_p),
        ("scratch_bytes", ctypes.c_int64),
        ("spins", ctypes.c_int64),
        ("cpu", ctypes.c_int32),
        ("_pad2", ctypes.c_int32),
        ("epoch", ctypes.c_int32),
        ("parked", ctypes.c_int32),
        ("stop", ctypes.c_int32),
        ("_pad3", ctypes.c_int32 * 13),
    )


def walker_ir(isa: Isa) -> str:
    """The module of `walk(ctx, table, n)`, `help(ctx, index)`, which ends after `stop(ctx)`, and `stop`.

    `walk_timed(ctx, table, n, times)` also writes the monotonic clock, as (seconds, nanoseconds), before
    the first entry and after each.
    """
    module = Module(isa)
    module.declare("syscall", "i64", ("i64",), is_variadic=True)
    for write in (_write_take, _write_wake, _write_step_aside, _write_walk, _write_help, _write_stop):
        write(module)
    _write_walk(module, is_timed=True)
    return module.text()


def _write_walk(module: Module, is_timed: bool = False) -> None:
    params = [("ctx", "ptr"), ("table", "ptr"), ("n", "i64")]
    name, more = ("walk_timed", [("times", "ptr")]) if is_timed else ("walk", [])
    with module.function(name, params + more) as f:
        ctx, table, n = f.params[:3]
        _exchange(f, "cpu", _cpu(f))
        if is_timed:
            _stamp(f, f.const(0))
        with f.each(0, n) as i:
            entry = f.at(table, i * ctypes.sizeof(Entry), "i8")
            kernel, args, units, grain = f.fields(entry, Entry, "kernel", "args", "n_units", "grain")
            with f.when(units > 0):
                for name, value in (("kernel", kernel), ("args", args), ("limit", units), ("grain", grain)):
                    _store(f, name, value)
                _store(f, "done", f.const(0))
                published = (((_load(f, "ticket") >> UNIT_BITS) + 1) << UNIT_BITS) | units
                # Sequentially consistent: a helper about to park sees this ticket, or is seen in `parked`.
                _exchange(f, "ticket", published)
                with f.when((units > grain) & _load(f, "parked", "i32").compare("ne", 0)):
                    f.call("wake", "void", ctx)
                with f.repeat() as turn:
                    turn.again(_take(f, ctx, f.const(0)))
                _wait_until_done(f, units)
            if is_timed:
                _stamp(f, i + 1)
        f.ret()


def _write_help(module: Module) -> None:
    with module.function("help", [("ctx", "ptr"), ("index", "i64")]) as f:
        ctx, index = f.params
        (patience,) = f.fields(ctx, Context, "spins")
        with f.repeat([f.const(0)]) as turn:
            cpu = _cpu(f)
            with f.when(_load(f, "cpu", "i32").compare("eq", cpu)):
                f.call("step_aside", "void", ctx, cpu)

            def worked() -> list[Value]:
                return [f.const(0), f.const(1, "i1")]

            def idled() -> list[Value]:
                f.pause()
                spins = turn.carried[0] + 1
                return f.choose(spins < patience, lambda: [spins, f.const(1, "i1")], lambda: parked(f))

            def parked(f: Function) -> list[Value]:
                _park(f)
                return [f.const(0), _load(f, "stop", "i32").compare("eq", 0)]

            spins, is_running = f.choose(_take(f, ctx, index), worked, idled)
            turn.again(is_running, [spins])
        f.ret()


def _write_stop(module: Module) -> None:
    with module.function("stop", [("ctx", "ptr")]) as f:
        _exchange(f, "stop", f.const(1, "i32"))
        f.call("wake", "void", f.params[0])
        f.ret()


def _write_take(module: Module) -> None:
    """Run one grain of the published entry; false if none was left."""
    with module.function("take", [("ctx", "ptr"), ("index", "i64")], "i1", is_exported=False) as f:
        index = f.params[1]
        ticket = _load(f, "ticket")
        left = ticket & _UNIT_MASK
        with f.when(left.compare("eq", 0)):
            f.ret(f.const(0, "i1"))
            f.place(f.label("unreached"))
        share = f.least(left, _load(f, "grain"))
        pair = f.op(f"cmpxchg {_at(f, 'ticket')}, {ticket}, {ticket - share} seq_cst seq_cst", "{ i64, i1 }")
        with f.when(f.op(f"extractvalue {pair}, 1", "i1")):
            first = _load(f, "limit") - left
            last = first + share
            scratch = f.at(_load(f, "scratch", "ptr"), index * _load(f, "scratch_bytes"), "i8")
            f.call(_load(f, "kernel", "ptr"), "void", _load(f, "args", "ptr"), first, last, scratch)
            f.op(f"atomicrmw add {_at(f, 'done')}, {last - first} seq_cst", "i64")
        f.ret(f.const(1, "i1"))


def _write_wake(module: Module) -> None:
    with module.function("wake", [("ctx", "ptr")], is_exported=False, attributes="noinline cold") as f:
        _exchange(f, "parked", f.const(0, "i32"))
        f.op(f"atomicrmw add {_at(f, 'epoch')}, i32 1 seq_cst", "i32")
        _futex(f, _WAKE_PRIVATE, f.const(_EVERYONE, "i32"))
        f.ret()


def _write_step_aside(module: Module) -> None:
    """Leave `cpu`, if the process may run elsewhere; try once a walk."""
    params = [("ctx", "ptr"), ("cpu", "i32")]
    with module.function("step_aside", params, is_exported=False, attributes="noinline cold") as f:
        cpus = f.op(f"alloca [{_CPU_SET_BYTES} x i8], align 8", "ptr")
        _exchange(f, "cpu", f.const(-1, "i32"))
        n_bytes = _affinity(f, _calls(f).get_affinity, f.const(_CPU_SET_BYTES), cpus)
        with f.when(n_bytes > 0):
            mine = f.at(cpus, f.cast("zext", f.params[1] >> 3, "i64"), "i8")
            allowed = f.load(mine, "i8")
            bit = f.const(1, "i8") << f.cast("trunc", f.params[1] & 7, "i8")
            f.store(allowed ^ bit, mine)
            _affinity(f, _calls(f).set_affinity, n_bytes, cpus)
            f.store(allowed, mine)
            _affinity(f, _calls(f).set_affinity, n_bytes, cpus)
        f.ret()


def _affinity(f: Function, call: int, n_bytes: Value, cpus: Value) -> Value:
    """Of this thread; setting it to no core at all is refused by the kernel and changes nothing."""
    return f.op(f"call i64 (i64, ...) @syscall(i64 {call}, i64 0, {n_bytes}, {cpus})", "i64")


def _cpu(f: Function) -> Value:
    cpu = f.call("sched_getcpu", "i32")
    assert cpu is not None
    return cpu


def _park(f: Function) -> None:
    """Sleep until the epoch moves, unless work or the end came since the last look."""
    epoch = _load(f, "epoch", "i32")
    _exchange(f, "parked", f.const(1, "i32"))
    is_idle = (_load(f, "ticket") & _UNIT_MASK).compare("eq", 0)
    with f.when(is_idle & _load(f, "stop", "i32").compare("eq", 0)):
        _futex(f, _WAIT_PRIVATE, epoch)


def _wait_until_done(f: Function, units: Value) -> None:
    """Spin for the units others took; give the core away when they take long."""
    f.module.declare("sched_yield", "i32", ())
    with f.repeat([f.const(0)]) as turn:
        f.pause()
        spins = turn.carried[0] + 1
        with f.when(spins > _SPINS_BEFORE_YIELD):
            f.call("sched_yield", "i32")
        turn.again(_load(f, "done").compare("ne", units), [spins])


def _take(f: Function, ctx: Value, index: Value) -> Value:
    took = f.call("take", "i1", ctx, index)
    assert took is not None
    return took


def _stamp(f: Function, i: Value) -> None:
    f.call("clock_gettime", "i32", f.const(_CLOCK_MONOTONIC, "i32"), f.at(f.params[3], i * 2, "i64"))


def _calls(f: Function) -> _SystemCalls:
    return _AARCH64 if f.isa.name == "neon" else _X86_64


def _futex(f: Function, operation: int, value: Value) -> None:
    arguments = f"i64 {_calls(f).futex}, {_at(f, 'epoch')}, i32 {operation}, {value}, ptr null"
    f.op(f"call i64 (i64, ...) @syscall({arguments})", "i64")


def _at(f: Function, name: str) -> Value:
    return f.at(f.params[0], getattr(Context, name).offset, "i8")


def _load(f: Function, name: str, type_: str = "i64") -> Value:
    return f.op(f"load atomic {type_}, {_at(f, name)} seq_cst, align {4 if type_ == 'i32' else 8}", type_)


def _store(f: Function, name: str, value: Value) -> None:
    """Visible no later than the ticket that is published after it."""
    f.do(f"store atomic {value}, {_at(f, name)} release, align 8")


def _exchange(f: Function, name: str, value: Value) -> None:
    f.op(f"atomicrmw xchg {_at(f, name)}, {value} seq_cst", value.type)
