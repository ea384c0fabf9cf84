"""Search compiled kernels for vectors that inner loops keep on the stack."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from pliant.kernels.emit.isa import Isa
from pliant.kernels.runtime.compile_child import compile_assembly
from tests.guards.generators import ROWS, cases

_HOT = re.compile(
    r"gemm( int8| bytes| bf16| split)?|matmul (None|split|of \d bits|of .*)"
    r"|matmul integer (words|bytes)( float None)?"
    r"|attention \d+( of texts| and \d+)?|(depthwise |winograd |quantized )?conv_(n\w+_n\w+|u8_i8_i32)"
    r"|grouped.*|points.*|planes.*|conv_(split|bf16)_.*|conv weights split"
    r"|(lstm|gru|rnn)_\w+"
)
"""Generators with a register tile; the same tile under other epilogues is searched once."""

_BRANCH = re.compile(r"^\s+(?:j\w+|b|b\.\w+|cbn?z|tbn?z)\s.*?(\.?L\w+)\s*$")
_LABEL = re.compile(r"^(\.?L\w+):")
_FUNCTION = re.compile(r"^(\w+):")
_RETURN = re.compile(r"^\s+retq?$")
_CALL = re.compile(r"^\s+(?:callq?|blr?)\s")
_ON_STACK = {
    "x86": re.compile(r"^\s+(?!v?movs[sd]\s)\S+\s.*(?:%[xyz]mm\d+.*\(%rsp\)|\(%rsp\).*%[xyz]mm\d+)"),
    "neon": re.compile(r"^\s+(?:ld|st)\w+\s+[qd]\d+,.*\[sp"),
}


@dataclass(frozen=True, slots=True)
class Loop:
    """An innermost loop of a function: its instructions."""

    function: str
    lines: tuple[str, ...]


def inner_loops(assembly: str) -> Iterator[Loop]:
    """The loops that contain no other and no call, from a label to the last branch back to it."""
    function, labels = "", dict[str, int]()
    lines = assembly.splitlines()
    ends: dict[tuple[str, int], int] = {}
    for i, line in enumerate(lines):
        if found := _LABEL.match(line):
            labels[found[1]] = i
        elif named := _FUNCTION.match(line):
            function, labels = named[1], {}
        elif (branch := _BRANCH.match(line)) and branch[1] in labels:
            start = labels[branch[1]]
            if not _returns(lines[start + 1 : i]):
                ends[function, start] = i
    for (function, start), end in ends.items():
        if not any(start < other < end for _, other in ends):
            body = tuple(lines[start + 1 : end + 1])
            if not any(map(_CALL.match, body)):
                yield Loop(function, body)


def _returns(lines: Sequence[str]) -> bool:
    """Whether a block ends in a return: what branches back to it leaves the function."""
    ends = (line for line in lines if any(end.match(line) for end in (_BRANCH, _LABEL, _RETURN)))
    return bool(_RETURN.match(next(ends, "")))


def spills(loop: Loop, isa: Isa) -> int:
    """Instructions of a loop that store a vector register on the stack or read one from there."""
    on_stack = _ON_STACK["neon" if isa.name == "neon" else "x86"]
    return sum(bool(on_stack.search(line)) for line in loop.lines)


def hot_cases(isa: Isa) -> dict[str, Callable[[Isa], str]]:
    """The generators that are searched, by their labels among the guards' cases."""
    return {label: generator for label, generator in cases(isa).items() if _HOT.fullmatch(label)}


def found_spills(isa: Isa) -> dict[str, int]:
    """The most of any inner loop by "case, function", where there are some, in the code that is shipped.

    A kernel whose text an earlier row of the same family has too is searched there: LLVM writes the same
    loops for all of them but products of words, where it joins a multiplication and a sum with VNNI.
    """
    found = dict[str, int]()
    earlier = {text for other in _earlier(isa) for text in _texts(other).values()}
    own = {
        label: text
        for label, text in _texts(isa).items()
        if text not in earlier or label.startswith("matmul integer words")
    }
    triple = isa.triple or "x86_64-unknown-linux-gnu"
    texts = compile_assembly(list(own.values()), isa.cpu, isa.features, triple)
    for label, text in zip(own, texts, strict=True):
        for loop in inner_loops(text):
            if n := spills(loop, isa):
                key = f"{label}, {loop.function}"
                found[key] = max(n, found.get(key, 0))
    return found


@cache
def _texts(isa: Isa) -> dict[str, str]:
    return {label: generator(isa) for label, generator in hot_cases(isa).items()}


def _earlier(isa: Isa) -> list[Isa]:
    """The rows of the same family with fewer features."""
    rows = [row for row in ROWS.values() if row.cpu == isa.cpu]
    return rows[: rows.index(isa)]
