"""Every kind of fault that an executable may have is found, and named by its part."""

from dataclasses import replace

import pytest

from pliant.ir.check.executable_check import ExecutableFault, executable_faults
from pliant.ir.executable import (
    Address,
    Alias,
    ArenaTensor,
    Constant,
    Executable,
    ExecutableType,
    Formula,
    KernelCall,
)

ROW = ExecutableType("float32", (Formula("n", 4),))
GOOD = Executable(
    "avx2",
    2,
    (("x", ROW),),
    (("y", ROW), ("z", ROW)),
    (Constant("w", 16, ExecutableType("float32", (4,))),),
    128,
    0,
    (ArenaTensor("h", 0, Formula("4*n", 16), 0, 1), ArenaTensor("g", 64, 16, 1, 3)),
    (Alias("half", Address("", 8)),),
    (
        KernelCall("add", 4, 1, 0, ("x", "w"), ("h",), (("a", Address("x")), ("c", Address("")))),
        KernelCall(
            "neg", 4, 1, 0, ("half",), ("g",), (("p", (Address("", 8), None)), ("c", Address("", 64)))
        ),
        KernelCall("neg", 4, 1, 0, ("g",), ("y",), (("a", Address("", 64)), ("c", Address("y")))),
    ),
    (("z", Address("", 64)),),
    (("n", 4),),
)


def _faults(executable: Executable) -> list[tuple[str, int, str]]:
    return [(fault.kind, fault.number, fault.reason) for fault in executable_faults(executable)]


def _call(number: int, **changes: object) -> Executable:
    calls = list(GOOD.calls)
    calls[number] = replace(calls[number], **changes)  # type: ignore[arg-type]
    return replace(GOOD, calls=tuple(calls))


def _tensor(number: int, **changes: object) -> Executable:
    tensors = list(GOOD.tensors)
    tensors[number] = replace(tensors[number], **changes)  # type: ignore[arg-type]
    return replace(GOOD, tensors=tuple(tensors))


def test_an_executable_that_can_run_has_no_faults() -> None:
    """The others are this one with one change."""
    assert _faults(GOOD) == []


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (_tensor(1, offset=0), ("tensor", 1, "g and h share bytes of the arena at call 1.")),
        (_tensor(1, offset=72), ("tensor", 1, "g begins at byte 72, no multiple of 64.")),
        (_tensor(1, offset=128), ("tensor", 1, "g ends at byte 144 of an arena of 128.")),
        (_tensor(0, last=0), ("call", 1, "half, at byte 8 of the arena, lies in no tensor that lives then.")),
        (
            _tensor(1, last=2),
            ("copy", 0, "byte 64 of the arena is copied, which holds no tensor to the end."),
        ),
        (_tensor(0, n_bytes=Formula("5*n", 16)), ("tensor", 0, "5*n is 20 for these sizes, not 16.")),
        (
            _tensor(0, n_bytes=Formula("4*m", 16)),
            ("tensor", 0, "no size is called 'm'; there are n, offset0, "),
        ),
        (_call(0, reads=("v",)), ("call", 0, "'v' has no place.")),
        (_call(0, reads=("y",)), ("call", 0, "it reads y, which no call before it wrote.")),
        (_call(0, writes=("y",)), ("call", 1, "it reads half, which no call before it wrote.")),
        (_call(2, writes=("g",)), ("output", 0, "no call writes y, and nothing is copied there.")),
        (
            _call(0, arguments=(("a", Address("", 64)),)),
            ("call", 0, "a is byte 64 of the arena, in none of its"),
        ),
        (
            _call(0, arguments=(("a", Address("x", 17)),)),
            ("call", 0, "a: byte 17 of x is outside its 16 bytes."),
        ),
        (
            _call(0, arguments=(("a", Address("q")),)),
            ("call", 0, "a: 'q' is not an input, output or constant."),
        ),
        (
            replace(GOOD, copies=(("z", Address("q")),)),
            ("copy", 0, "'q' is not an input, output or constant."),
        ),
        (
            replace(GOOD, aliases=(*GOOD.aliases, Alias("h", Address("x")))),
            ("head", 0, "two tensors are called h."),
        ),
    ],
)
def test_a_fault_is_found_and_named(broken: Executable, fault: tuple[str, int, str]) -> None:
    """A change that would make a run wrong is seen before anything runs."""
    kind, number, reason = fault
    found = [one for one in _faults(broken) if one[:2] == (kind, number)]
    assert any(one[2].startswith(reason) for one in found), _faults(broken)


def test_a_fault_is_a_value() -> None:
    """The command line turns kind and number into a line."""
    (first, *_) = executable_faults(_call(0, reads=("v",)))
    assert first == ExecutableFault("call", 0, "'v' has no place.")
