"""What is printed of an executable parses back, and what does not parse is named by its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import InputError
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
from pliant.ir.text.executable_text import executable_text, parse_executable

names = st.sampled_from(
    ["x", "x.0", "arena", "null", "a b", "inf", "a=1", "x+0", "[1]", "ü", "", "-1", 'a"b\\', "{n = 1}", "1e5"]
) | st.text(max_size=6)
spaces = st.just("") | names
numbers = st.integers(-3, 10**12) | st.builds(
    Formula,
    st.sampled_from(["n", "16*past+64", "((n+3)//4)", "min(n,2)", "'past + 1'*2", "a = 1"]),
    st.integers(-9, 10**9),
)
addresses = st.builds(Address, spaces, numbers)
scalars = st.none() | addresses | numbers | st.floats(allow_nan=False)
arguments = st.tuples(st.sampled_from(["a", "own.planes", "n_rows"]), scalars | st.lists(scalars).map(tuple))
types = st.builds(
    ExecutableType, st.sampled_from(["float32", "int4"]), st.lists(numbers, max_size=3).map(tuple)
)
digests = st.sampled_from(["", "0af3"])
sizes = st.integers(0, 10**9)


def several(of: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(of, max_size=3).map(tuple)


calls = st.builds(
    KernelCall,
    *[names, numbers, numbers, numbers, several(names), several(names), several(arguments)],
    *[st.none() | several(st.sampled_from(["n_rows", "a b"])), names, names],
)
executables = st.builds(
    Executable,
    names,
    sizes,
    several(st.tuples(names, types)),
    several(st.tuples(names, types)),
    several(
        st.builds(Constant, names, sizes, types, st.just(""), digests)
        | st.builds(Constant, names, sizes, st.none(), names, digests)
    ),
    *[numbers, numbers],
    several(st.builds(ArenaTensor, names, sizes, numbers, sizes, sizes)),
    several(st.builds(Alias, names, addresses)),
    several(calls),
    several(st.tuples(names, addresses)),
    several(st.tuples(names, sizes)),
)


@given(executables)
def test_every_executable_parses_back(executable: Executable) -> None:
    """Whatever its names and numbers are, and with lines before it, as in a plan's page."""
    text = executable_text(executable)
    assert parse_executable(text).executable == executable
    assert executable_text(parse_executable("a page\n\n" + text).executable) == text


SMALL = Executable(
    "avx2",
    2,
    (("x", ExecutableType("float32", (4,))),),
    (("y", ExecutableType("float32", (4,))),),
    (Constant("w", 16, ExecutableType("float32", (4,)), digest="0af3"), Constant("w|p", 64, source="w")),
    64,
    0,
    (ArenaTensor("h", 0, 16, 0, 1),),
    (),
    (
        KernelCall(
            "add", 4, 1, 0, ("x", "w"), ("h",), (("a", Address("x")), ("c", Address(""))), None, "Add"
        ),
        KernelCall("neg", 4, 1, 0, ("h",), ("y",), (("eps", 1e-5), ("p", (Address("y"), None, 1)))),
    ),
)
TEXT = """executable avx2, 2 threads
input x float32[4]
output y float32[4]
constant w float32[4], 16 B sha256 0af3
packed "w|p" 64 B from w
arena 64 B, scratch 0 B a thread
tensor h arena+0 16 B, calls 0 to 1
call 0 add, 4 units, grain 1, scratch 0 B; Add ""
    reads x w writes h
    a=x+0 c=arena+0
call 1 neg, 4 units, grain 1, scratch 0 B; "" ""
    reads h writes y
    eps=1e-05 p=[y+0,null,1]
"""


def test_the_form_is_stable() -> None:
    """Texts that people keep stay readable."""
    assert executable_text(SMALL) == TEXT
    lines = parse_executable(TEXT).lines
    assert [lines["head", 0], lines["tensor", 0], lines["call", 0], lines["call", 1]] == [1, 7, 8, 11]


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("executable avx2, 2 threads", "executable avx2", "line 1: 'executable avx2' is not an executable's"),
        ("float32[4]", "float32[4", "line 2: 'input x float32.4' is not an input or output"),
        ("16 B sha256 0af3", "16 B sha256 no", "line 4: .* is not a constant"),
        ("arena 64 B, scratch 0 B a thread\n", "", "line 1: the executable has no line 'arena BYTES"),
        ("tensor h", "tenor h", "line 7: 'tenor h .* is not a part of an executable: lines begin with input"),
        ("calls 0 to 1", "calls 0", "line 7: .* is not a tensor: 'tensor NAME arena"),
        ("call 1 ", "call 2 ", "line 11: call 1 comes here, not 2"),
        ("4 units, grain 1, scratch 0 B; Add", "four units; Add", "line 8: .* is not a call: 'call NUMBER"),
        ("    reads h writes y\n", "", "line 12: .*eps=.* is not what a call touches"),
        ("a=x+0 c=", "a=x c=", "line 10: .* is not a call's arguments"),
        ("arena 64 B", "arena 64 B, scratch 0 B a thread\narena 64 B", "line 7: 'arena .* is not a part"),
    ],
)
def test_a_broken_line_is_named_with_what_should_stand_there(was: str, becomes: str, message: str) -> None:
    """A person edits these files, and a transfer may cut them."""
    assert was in TEXT
    with pytest.raises(InputError, match=message):
        parse_executable(TEXT.replace(was, becomes, 1))


@pytest.mark.parametrize("n", [1, 5, 8, 9, 11, 12])
def test_a_text_cut_within_a_part_is_refused(n: int) -> None:
    """Before the arena, or within a call."""
    with pytest.raises(InputError, match=r"^line "):
        parse_executable("\n".join(TEXT.splitlines()[:n]))


@pytest.mark.parametrize(
    ("text", "message"),
    [("n+m", "no size is called 'm'; there are n"), ("n**2", "has no place"), ("n+", "is not a formula")],
)
def test_a_formula_is_of_known_sizes_and_whole_numbers(text: str, message: str) -> None:
    """A formula from a file is computed, never run as code."""
    assert Formula("min(((n+3)//4),7)*2-n", 0).at({"n": 5}) == -1
    assert Formula("'past + 1'*2", 0).at({"past + 1": 3}) == 6
    with pytest.raises(ValueError, match=message):
        Formula(text, 0).at({"n": 2})
