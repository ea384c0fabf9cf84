"""What is printed parses back, and what does not parse is named by its line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import InputError
from pliant.ir.program import (
    Compute,
    Exchange,
    LinearExtent,
    Load,
    Program,
    Segment,
    SliceRun,
    Step,
    Tensor,
    TensorPart,
)
from pliant.ir.text.program_text import parse_program, program_text

GOLDEN = Path(__file__).parents[2] / "golden"
EXTENTS = ("tokens", "batch rows", "2n-1", 'a"b\\', "")
names = st.sampled_from(
    ["x", "x.0", "up.1@d-0", "a b", "load", "send", "x[0:1, 0:2]", "a->b", "ü", "rows", "", "-1"]
)
words = st.one_of(names, st.text(max_size=6))
amounts = st.one_of(
    st.integers(-3, 10**12),
    st.builds(LinearExtent, st.sampled_from(EXTENTS), st.integers(-2, 3), st.integers(-5, 5)),
)
places = st.builds(TensorPart, *[st.integers(0, 9), st.integers(1, 9)] * 2)


@st.composite
def steps(draw: st.DrawFn, number: int) -> Step:
    earlier = st.lists(st.integers(0, number - 1), max_size=3).map(tuple) if number else st.just(())
    after, prefer = draw(earlier), draw(earlier)
    latest = st.floats(0, allow_nan=False) if prefer else st.none()
    kind = draw(st.sampled_from(["compute", "load", "exchange"]))
    if kind == "exchange":
        src, dst = draw(st.sampled_from([("a", "b"), ("d-0", "d.1"), ("", "b"), ("a->b", "ü")]))
        work = Exchange(draw(words), draw(amounts), src, dst, draw(st.none() | places))
        return Step(f"net:{src}->{dst}", work, after, prefer, draw(latest))
    if kind == "load":
        count = draw(st.integers(1, 4))
        layer = draw(st.integers(0, 30))
        runs = tuple(
            SliceRun(layer, part, 2, count) for part in draw(st.lists(st.integers(0, 6), min_size=1))
        )
        load = Load(layer, runs, draw(st.integers(1, 10**9)), draw(st.integers(1, count)))
        return Step(
            draw(st.sampled_from(["io", "d/io"])), load, after, prefer, draw(st.none() | st.floats(0, 9))
        )
    device = draw(st.sampled_from(["", "d", "d/e"]))
    lanes = [lane for lane in ("cpu", "d/cpu", "d/e/cpu") if lane.startswith(device)]
    numbers = st.none() | st.integers(-2, 40)
    work = Compute(draw(words), draw(numbers), draw(numbers), draw(amounts), device)
    return Step(draw(st.sampled_from(lanes)), work, after, prefer, draw(latest))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    tensors = tuple(
        Tensor(name, tuple(draw(st.lists(amounts, max_size=3))), draw(st.integers(1, 8)))
        for name in draw(st.lists(words, unique=True, max_size=3))
    )
    live = (
        st.lists(st.sampled_from([t.name for t in tensors]), max_size=2).map(tuple)
        if tensors
        else st.just(())
    )
    segments = tuple(
        Segment(tuple(draw(steps(i)) for i in range(draw(st.integers(0, 5)))), draw(live))
        for _ in range(draw(st.integers(0, 3)))
    )
    return Program(segments, tensors, EXTENTS)


@given(programs())
def test_what_is_printed_parses_back(program: Program) -> None:
    """Names of any signs, numbers to the last digit: a golden file is the program itself."""
    assert parse_program(program_text(program)).program == program


def test_a_golden_file_is_a_program() -> None:
    """Tests read programs as files; a step knows its line."""
    text = (GOLDEN / "program.txt").read_text(encoding="utf-8")
    found = parse_program(text)
    assert program_text(found.program) == text
    assert found.lines == (5, 6, 7, 8, 10, 11, 12, 13, 14)


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        (1, "segment 0", "line 1: a program begins"),
        (2, "tensor hidden [tokens x 4 B", "line 2: .* is not a tensor"),
        (2, "tensor hidden [words, 384] x 4 B, lives for the run", r"line 1: extents \['words'\]"),
        (4, "segment 1 keeps hidden", "line 4: segment 0 comes here, not 1"),
        (4, "segment 0 keeps nothing", "line 1: segment 0 keeps"),
        (5, "   0 cpu", "line 5: .* is not a step"),
        (5, "   1 cpu embed rows tokens", "line 5: step 0 of the segment comes here, not 1"),
        (5, "   0 cpu embed", "line 5: 'embed' is not work"),
        (5, "   0 cpu embed rows tokens after 1", "line 5: step 0 waits for step 1"),
        (6, "   1 io load 3 plane 0 [0:0] (4 B)", "line 6: a load of layer 3 needs possible runs"),
        (8, "   3 cpu layer 3 x12 rows tokens until 1.0 s", "line 8: step 3 has a latest start"),
        (13, "   3 net:b->a send part a->b (64 B) after 2", "line 13: step 3 sends a->b on lane"),
    ],
)
def test_what_is_no_program_is_named_by_its_line(line: int, instead: str, message: str) -> None:
    """A user who edits a plan needs the number of the wrong line."""
    lines = (GOLDEN / "program.txt").read_text(encoding="utf-8").splitlines()
    lines[line - 1] = instead
    with pytest.raises(InputError, match=message):
        parse_program("\n".join(lines))
