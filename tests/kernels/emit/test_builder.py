"""The IR builder: what it writes must compile and mean what it says."""

import ctypes
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import pytest

from pliant.kernels.emit import builder as emit
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa, host_isa
from pliant.kernels.emit.values import Value, literal, scalar, vector
from pliant.kernels.runtime.jit import Library
from tests.kernels.kernel_call import call

_numbers = count()


@pytest.fixture(scope="module")
def integers(library_of: Callable[[Isa], Library]) -> Callable[..., int]:
    """Compile a body over i64 parameters, once, and call it; control flow is the same on every row."""
    library = library_of(host_isa())
    names: dict[object, str] = {}

    def run(body: Callable[[Function, Sequence[Value]], Value], *arguments: int) -> int:
        module = Module(library.isa)
        name = names.setdefault(body, f"integers{next(_numbers)}")
        with module.function(name, [(f"p{i}", "i64") for i in range(len(arguments))], "i64") as f:
            f.ret(body(f, f.params))
        address = library.load_function(name, module.text)
        return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))(address)(*arguments)

    return run


def test_a_loop_carries_its_values_and_leaves_the_last_ones(integers: Callable[..., int]) -> None:
    """Sums live in registers across a loop: phis are the builder's reason to exist."""

    def triangle(f: Function, p: Sequence[Value]) -> Value:
        with f.loop(0, p[0], 1, [f.const(0), f.const(1)]) as loop:
            loop.carry([loop.carried[0] + loop.index, loop.carried[1] * 2])
        return loop.carried[0] * 1000000 + loop.carried[1]

    assert integers(triangle, 10) == 45 * 1000000 + 1024


def test_a_loop_without_turns_leaves_its_start_values(integers: Callable[..., int]) -> None:
    """Tails of length zero are the common case."""

    def body(f: Function, p: Sequence[Value]) -> Value:
        with f.loop(p[0], 3, 1, [f.const(42)]) as loop:
            loop.carry([loop.carried[0] + 1])
        return loop.carried[0]

    assert integers(body, 5) == 42
    assert integers(body, 3) == 42
    assert integers(body, -1) == 46


def test_loops_nest_with_branches_inside(integers: Callable[..., int]) -> None:
    """A phi must name the block that really jumped, not the one where the loop began."""

    def body(f: Function, p: Sequence[Value]) -> Value:
        with f.loop(0, p[0], 1, [f.const(0)]) as outer:
            with f.loop(0, outer.index, 1, outer.carried) as inner:
                is_odd = (inner.index & 1).compare("eq", 1)
                (step,) = f.choose(is_odd, lambda: [f.const(100)], lambda: [inner.index + 1])
                with f.when(is_odd):
                    f.const(0)
                inner.carry([inner.carried[0] + step])
            outer.carry(inner.carried)
        return outer.carried[0]

    expected = sum(100 if j % 2 else j + 1 for i in range(7) for j in range(i))
    assert integers(body, 7) == expected


def test_repeat_runs_at_least_once_and_ends_when_told(integers: Callable[..., int]) -> None:
    """The pool's waiting loops are of this kind."""

    def body(f: Function, p: Sequence[Value]) -> Value:
        with f.repeat([p[0]]) as loop:
            following = loop.carried[0] * 2
            loop.repeat_if(following < 100, [following])
        return loop.carried[0]

    assert integers(body, 3) == 192
    assert integers(body, 200) == 400


def test_match_runs_the_one_case_or_none(integers: Callable[..., int]) -> None:
    """Row remainders dispatch to their variants by it."""

    def body(f: Function, p: Sequence[Value]) -> Value:
        slot = f.op("alloca i64, align 8", "ptr")
        f.store(f.const(-1), slot)
        f.match(p[0], {n: (lambda n=n: f.store(f.const(n * n), slot)) for n in (1, 2, 5)})  # type: ignore[misc]
        return f.load(slot, "i64")

    assert [integers(body, n) for n in (1, 2, 3, 5)] == [1, 4, -1, 25]


_OPERATORS: tuple[Callable[[Function, Sequence[Value]], Value], ...] = (
    lambda f, p: p[0] // p[1],
    lambda f, p: p[0] % p[1],
    lambda f, p: f.cast("zext", p[0] < p[1], "i64"),
    lambda f, p: -(p[0] - p[1] * 3),
    lambda f, p: f.least(p[0], p[1]),
    lambda f, p: (p[0] & p[1]) | (p[0] ^ 5),
)


@pytest.mark.parametrize("a", [-7, 0, 9])
@pytest.mark.parametrize("b", [-2, 3])
def test_integer_operators_are_signed(integers: Callable[..., int], a: int, b: int) -> None:
    """C's rules: division rounds toward zero, remainders follow the dividend."""
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    expected = (quotient, a - quotient * b, int(a < b), -(a - b * 3), min(a, b), (a & b) | (a ^ 5))
    assert [integers(operator, a, b) for operator in _OPERATORS] == list(expected)


class _Args(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("small", ctypes.c_int32),
        ("factor", ctypes.c_float),
    )


def test_fields_read_a_ctypes_structure(library: Library) -> None:
    """Kernel arguments are ctypes structures; offsets and types come from there and nowhere else."""
    module = Module(library.isa)
    with module.kernel("fields") as f:
        x, n, small, factor = f.fields(f.params[0], _Args, "x", "n", "small", "factor")
        f.store(f.cast("sitofp", n, "float") * factor, f.at(x, f.cast("sext", small, "i64")))
    out = np.zeros(4, np.float32)
    args = _Args(out.ctypes.data, 10, 2, 0.25)
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    kernel(library.load_function("fields", module.text))(ctypes.addressof(args), 0, 1, None)
    assert out.tolist() == [0, 0, 2.5, 0]


def test_vectors_shuffle_splat_fold_and_fma(library: Library) -> None:
    """What kernels are made of, on every width: sum over lanes of (lanes reversed) * 3 + 1."""
    lanes = library.isa.lanes
    module = Module(library.isa)
    with module.kernel("vectors") as f:
        data = f.params[0]
        x = f.load(data, f.vec)
        backwards = f.shuffle(x, None, range(lanes - 1, -1, -1))
        y = f.fma(backwards, f.splat(f.const(3.0, "float")), f.const(1.0, f.vec))
        f.store(y, data)
        f.store(f.fold(y, lambda a, b: a + b), f.at(data, lanes))
        f.store(f.load(f.at(f.table(range(5), "float"), 3)), f.at(data, lanes + 1))
    out = np.arange(lanes + 2, dtype=np.float32)
    expected = np.arange(lanes)[::-1] * 3.0 + 1
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    kernel(library.load_function("vectors", module.text))(out.ctypes.data, 0, 0, None)
    assert out[:lanes].tolist() == expected.tolist()
    assert out[lanes] == expected.sum()
    assert out[lanes + 1] == 3


def test_float_constants_are_float32_to_the_bit() -> None:
    """LLVM refuses a decimal that no float32 equals; the builder must round it first."""
    assert literal(0.1, "float") == "0x3FB99999A0000000"
    assert literal(float("inf"), "float") == "0x7FF0000000000000"
    assert literal(2, "<4 x i32>") == "splat (i32 2)"
    assert scalar(vector(8, "float")) == "float"


def test_equal_tables_are_stored_once(library: Library) -> None:
    """Constant tables are asked for wherever they are used."""
    module = Module(library.isa)
    assert module.table([1, 2], "float") == module.table([1.0, 2.0], "float")
    assert module.table([1, 2], "float") != module.table([1, 2], "i32")


def test_the_text_is_the_same_every_time(library: Library) -> None:
    """The cache is keyed by the text: a generator that wavers would compile forever."""

    def text() -> str:
        module = Module(library.isa)
        with module.kernel("same") as f, f.each(f.params[1], f.params[2]) as i:
            f.store(f.const(1.0, f.vec), f.at(f.params[3], i))
        return module.text()

    assert text() == text()


def test_the_example_in_the_modules_docstring_runs(library: Library) -> None:
    """An example that does not compile misleads whoever writes the next kernel."""

    class ScaleArgs(ctypes.Structure):
        _fields_ = (("x", ctypes.c_void_p), ("n", ctypes.c_int64))

    lines = (emit.__doc__ or "").splitlines()
    example = "\n".join(line[4:] for line in lines if line.startswith("    "))
    names: dict[str, object] = {"Module": Module, "ScaleArgs": ScaleArgs, "isa": library.isa}
    exec(example, names)
    x = np.arange(64, dtype=np.float32)
    args = ScaleArgs(x.ctypes.data, 32)
    call(library.load_function("scale", lambda: str(names["text"])), args, 2)
    assert x.tolist() == [2.0 * i for i in range(64)]
