"""Symbolic numbers: what was computed once holds for all sizes that meet the conditions noted on the way."""

import operator
from collections.abc import Callable
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.ir.symbolic import Trace, at_least, at_most, is_symbolic, largest, plain_value, size_array

_OPERATIONS: tuple[Callable[[int, int], int], ...] = (
    operator.add,
    operator.sub,
    operator.mul,
    lambda a, b: a // b if b else a,
    lambda a, b: a % b if b else b,
    min,
    max,
    at_least,
    at_most,
    lambda a, b: a if a < b else -b,
    lambda a, b: a + 1 if a == b else a - 1,
    lambda a, b: abs(a) if a >= 3 else b,
    lambda a, b: -(-a // 8) * 8,
    lambda a, b: len(range(min(abs(a), 5))) + b,
)
_STEPS = st.lists(
    st.tuples(st.sampled_from(_OPERATIONS), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8
)


def _run(steps: list[tuple[Callable[[int, int], int], int, int]], a: int, b: int) -> list[int]:
    """All numbers that random steps make of two sizes and a constant."""
    found = [a, b, 6]
    for step, i, j in steps:
        found.append(step(found[i % len(found)], found[j % len(found)]))
    return found


@given(_STEPS, st.tuples(*[st.integers(1, 40)] * 4))
def test_numbers_are_those_of_running_again_wherever_the_conditions_hold(
    steps: list[tuple[Callable[[int, int], int], int, int]], sizes: tuple[int, int, int, int]
) -> None:
    """An executable is bound to other sizes on nothing but this promise."""
    trace = Trace()
    made = _run(steps, trace.symbol("a", sizes[0]), trace.symbol("b", sizes[1]))
    assert list(map(plain_value, made)) == _run(steps, *sizes[:2])
    assert trace.checker(("a", "b"))(*sizes[:2])
    if trace.checker(("a", "b"))(*sizes[2:]):
        assert list(trace.evaluator(("a", "b"), made)(*sizes[2:])) == _run(steps, *sizes[2:])


def test_equal_polynomials_are_compared_without_a_condition() -> None:
    """A shape that is reshaped and compared with itself would tie the program to one size otherwise."""
    trace = Trace()
    n = trace.symbol("n", 50)
    assert prod((1, 12, n, 32)) == n * 384
    assert (n * 384) // (n * 12) == 32
    assert n * 2 % 2 == 0
    assert trace.checker(("n",))(8)


@pytest.mark.parametrize(
    "leave",
    [str, repr, hash, int, float, range, np.zeros, "{:03d}".format, lambda n: n / 2, lambda n: n * 0.5],
)
def test_a_number_that_leaves_whole_arithmetic_is_a_condition(leave: Callable[[int], object]) -> None:
    """Whatever numpy, text or a dictionary made of it is of this one number."""
    trace = Trace()
    leave(trace.symbol("n", 7))
    holds = trace.checker(("n",))
    assert holds(7)
    assert not holds(8)


def test_an_array_never_takes_a_symbolic_number_without_a_condition() -> None:
    """numpy reads an int's value in C, where nothing is noted: a symbolic number is none to C."""
    trace = Trace()
    np.array([trace.symbol("n", 7), 1], np.int64)
    assert not trace.checker(("n",))(8)
    free = Trace()
    assert is_symbolic(size_array((1, free.symbol("n", 7)))[1])
    assert not free.conditions


def test_numbers_of_another_trace_are_constants() -> None:
    """What one compilation left in a cache must not look as if it followed from the sizes of the next."""
    first, second = Trace(), Trace()
    sum_ = first.symbol("n", 3) + second.symbol("n", 4)
    assert first.evaluator(("n",), [sum_])(10) == (14,)


def test_sizes_at_which_a_divisor_is_0_do_not_hold() -> None:
    """Whether a program holds is asked for all sizes, those included for which it would divide by nothing."""
    trace = Trace()
    n = trace.symbol("n", 50)
    number = 96 // (n // 8)
    holds = trace.checker(("n",))
    assert plain_value(number) == 16
    assert holds(20)
    assert not holds(5)


def test_the_largest_of_several_is_found_anew_for_other_sizes() -> None:
    """Scratch memory is that of whichever call needs most, at these sizes."""
    trace = Trace()
    n = trace.symbol("n", 3)
    most = largest([n * 2, 10, n * 2, n + 1])
    assert not trace.conditions
    assert trace.evaluator(("n",), [most])(30) == (60,)
    assert plain_value(most) == 10
