"""Copies between views on every instruction set, against numpy's strides; nothing around them is touched."""

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from pliant.compiler.executable.call import Call, Ref
from pliant.compiler.rewrite.view import View, row_major
from pliant.compiler.rules.move.copy_calls import CopyLoop, copy_calls, merge_loops
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.run_node import machine
from tests.kernels.kernel_call import call as run_kernel

ISAS = [to_portable(isa) for isa in (AVX512, AVX2, X86_64)]
EVERY_ISA = pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
MARGIN = 67


def _run(call: Call, tensors: dict[str, np.ndarray], isa: Isa) -> None:
    """One call on this thread, in units of its grain."""
    arguments = call.layout()
    for name, value in call.fields.items():
        owner: ctypes.Structure = arguments
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        if isinstance(value, Ref):
            setattr(owner, last, tensors[value.tensor].ctypes.data + value.offset)
        elif isinstance(value, tuple):
            getattr(owner, last)[:] = value
        else:
            setattr(owner, last, value)
    address = machine(isa)[0].load_function(call.kernel.name, lambda: call.kernel.ir(isa))
    for first in range(0, call.n_units, call.grain):
        run_kernel(address, arguments, min(first + call.grain, call.n_units), first=first)


def _check(source: View, size: int, isa: Isa) -> None:
    """Copy a view of counting numbers into a dense tensor with a margin, and compare."""
    dtype = UNSIGNED[size]
    low = source.offset + sum(min(0, (n - 1) * s) for n, s in zip(source.shape, source.strides, strict=True))
    high = source.offset + sum(max(0, (n - 1) * s) for n, s in zip(source.shape, source.strides, strict=True))
    assert low >= 0
    base = (np.arange(high + 1) * 7 + 1).astype(dtype)
    made = np.full(source.count + 2 * MARGIN, 99, dtype)
    target = View("y", MARGIN, source.shape, row_major(source.shape))
    for call in copy_calls(source, target, size, "it"):
        _run(call, {"x": base, "y": made}, isa)
    strides = [s * size for s in source.strides]
    wanted = as_strided(base[source.offset :], source.shape, strides)
    inside = slice(MARGIN, MARGIN + source.count)
    np.testing.assert_array_equal(made[inside].reshape(source.shape), wanted)
    assert (np.delete(made, inside) == 99).all()


Choices = tuple[int, list[tuple[int, int, int]], list[int], int]


@st.composite
def choices(draw: st.DrawFn) -> Choices:
    """Element size; length, step and count of up to five dimensions; their order; copies to spread to."""
    lengths = draw(st.lists(st.integers(1, 9) | st.sampled_from([17, 33, 70]), max_size=5))
    while np.prod(lengths) > 20_000:
        lengths.pop()
    dims = []
    for n in lengths:
        step = draw(st.sampled_from([1, 1, 2, -1, -3]))
        dims.append((n, step, draw(st.integers(1, -(-n // abs(step))))))
    size = draw(st.sampled_from([1, 2, 4, 8, 16]))
    return size, dims, list(draw(st.permutations(range(len(dims))))), draw(st.sampled_from([0, 1, 3]))


@EVERY_ISA
@settings(max_examples=150)
@given(chosen=choices())
def test_any_view_is_copied_exactly_and_nothing_beside_it(chosen: Choices, isa: Isa) -> None:
    """Rows, tiles, single elements and spreads must agree with numpy for all shapes and steps."""
    size, dims, order, times = chosen
    shape = tuple(n for n, _, _ in dims)
    view = View("x", 0, shape, row_major(shape))
    for axis, (n, step, count) in enumerate(dims):
        view = view.sliced(axis, 0 if step > 0 else n - 1, count, step)
    view = view.transposed(order)
    _check(view.broadcast([times, *view.shape]) if times else view, size, isa)


@EVERY_ISA
@pytest.mark.parametrize("size", sorted(UNSIGNED))
@pytest.mark.parametrize("shape", [(64, 64), (200, 137), (33, 70), (4, 4), (3, 100), (100, 5)])
def test_transposing_covers_tiles_and_their_edges(shape: tuple[int, int], size: int, isa: Isa) -> None:
    """Whole tiles, rests along either side, and shapes smaller than one tile."""
    _check(View("x", 0, shape, row_major(shape)).transposed((1, 0)), size, isa)


@EVERY_ISA
@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300])
def test_rows_of_every_length(n: int, isa: Isa) -> None:
    """A row's last vector overlaps the one before; short rows are two overlapping pieces."""
    _check(View("x", 2, (5, n), (n + 3, 1)), 1, isa)


@EVERY_ISA
def test_a_long_row_is_shared_among_units(isa: Isa) -> None:
    """One row of megabytes would keep one thread busy and the others idle."""
    view = View("x", 0, (1, 300_001), (300_001, 1))
    (first, *_) = copy_calls(view, View("y", 0, view.shape, view.strides), 4, "it")
    assert first.n_units > 10
    _check(view, 4, isa)


@EVERY_ISA
def test_more_loops_than_a_nest_has(isa: Isa) -> None:
    """Ten dimensions that do not merge become several calls."""
    shape = (2, 3, 2, 3, 2, 3, 2, 3, 2, 3)
    view = View("x", 0, shape, row_major(shape)).transposed(range(9, -1, -1))
    assert len(copy_calls(view, View("y", 0, view.shape, row_major(view.shape)), 4, "it")) > 1
    _check(view, 4, isa)


@EVERY_ISA
def test_nothing_is_done_for_nothing(isa: Isa) -> None:
    """A tensor without elements needs no call; a scalar needs one."""
    assert copy_calls(View("x", 0, (0, 3), (3, 1)), View("y", 0, (0, 3), (3, 1)), 4, "it") == ()
    _check(View("x", 0, (), ()), 4, isa)


def test_dimensions_that_walk_as_one_are_one() -> None:
    """[b, s, h, d] -> [b, h, s, d] keeps three loops for b = 1; a dense copy keeps one."""
    assert merge_loops([CopyLoop(4, 60, 60), CopyLoop(5, 12, 12), CopyLoop(3, 4, 4)]) == [CopyLoop(60, 4, 4)]
    assert (
        len(
            merge_loops(
                [CopyLoop(1, 9, 9), CopyLoop(12, 256, 32768), CopyLoop(128, 3072, 256), CopyLoop(64, 4, 4)]
            )
        )
        == 3
    )
