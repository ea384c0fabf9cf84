"""Check that the shapes of a node's inputs match, where ONNX's inference does not.

Kernels read sizes from one tensor and assume that the others match.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pliant.errors import GraphError, ShapeError
from pliant.ir.graph import Node, TensorType
from pliant.models.onnx.onnx_nodes import node_of

_Shape = tuple[int | None, ...]

MAX_WINDOW = 1 << 20
"""The limit of a window's positions, steps and pads; larger values, which no real model has, would run for
hours.
"""


def check_shapes(node: Any, types: Mapping[str, TensorType], where: str) -> None:
    """Raises GraphError naming node and tensor when windows or input shapes (ShapeError) do not match."""
    if node.domain not in ("", "ai.onnx") or not node.input or not node.input[0]:
        return
    typed = _TypedNode(node, types, where)
    if node.op_type in _WINDOWED:
        _check_window(typed)
    rule = _RULES.get(node.op_type)
    if rule is None:
        return
    for i, wanted in rule(typed):
        found = typed.shape(i)
        if found is not None and not _agrees(found, wanted):
            shown = ", ".join("any" if d is None else str(d) for d in wanted)
            raise ShapeError(
                f"{where}: {node.input[i]!r} is {types[node.input[i]]}, but must be [{shown}].", where
            )


@dataclass(frozen=True)
class _TypedNode:
    """A node with its inputs' types."""

    node: Any
    types: Mapping[str, TensorType]
    where: str

    def shape(self, i: int) -> tuple[int, ...] | None:
        name = self.node.input[i] if i < len(self.node.input) else ""
        return self.types[name].shape if name else None

    def shape_of_rank(self, i: int, least: int, most: int | None = None) -> tuple[int, ...]:
        """The shape of a required input."""
        shape = self.shape(i)
        if shape is None:
            raise GraphError(f"{self.where} lacks input {i}.")
        if not least <= len(shape) <= (least if most is None else most):
            name = self.node.input[i]
            raise GraphError(f"{self.where}: {name!r} is {self.types[name]}, which has too few or many axes.")
        return shape

    @cached_property
    def read(self) -> Node:
        """The node's attributes."""
        return node_of(self.node)

    def refuse(self, why: str) -> GraphError:
        return GraphError(f"{self.where}: {why}.")


ShapeRule = Callable[[_TypedNode], Iterator[tuple[int, _Shape]]]


def _agrees(found: tuple[int, ...], wanted: _Shape) -> bool:
    return len(found) == len(wanted) and all(w in (None, f) for f, w in zip(found, wanted, strict=True))


def _check_window(typed: _TypedNode) -> None:
    """Strides and dilations of 1 or more and pads of 0 or more, one (two) for each dimension, none too large.

    A kernel visits the whole window, also where padding places it outside the input.
    """
    rank = len(typed.shape_of_rank(0, 3, 5)) - 2
    wanted = {
        **dict.fromkeys(("kernel_shape", "strides", "dilations"), (rank, 1)),
        **dict.fromkeys(("output_padding", "output_shape"), (rank, 0)),
        "pads": (2 * rank, 0),
    }
    for name, (n, least) in wanted.items():
        value = typed.read.integers(name, None)
        if value is None or (name == "output_shape" and len(value) == rank + 2):
            continue
        if len(value) != n or min(value, default=least) < least:
            raise typed.refuse(f"{name} is {value}; {n} numbers of {least} or more are needed")
        if name != "output_shape" and max(value, default=0) > MAX_WINDOW:
            raise typed.refuse(f"{name} is {value}; numbers up to {MAX_WINDOW} are supported")
    if (taps := math.prod(typed.read.integers("kernel_shape", ()))) > MAX_WINDOW:
        raise typed.refuse(f"the window has {taps} positions; up to {MAX_WINDOW} are supported")


def _conv(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    yield from _weights(typed, 1)
    yield 2, (typed.shape_of_rank(1, 3, 5)[0],)


def _deform_conv(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    yield from _weights(typed, 1)
    x, w = typed.shape_of_rank(0, 4), typed.shape_of_rank(1, 4)
    groups, taps = typed.read.integer("offset_group", 1), w[2] * w[3]
    if groups < 1 or x[1] % groups:
        raise typed.refuse(f"{x[1]} channels are not {groups} offset groups")
    yield 2, (x[0], 2 * groups * taps, None, None)
    yield 3, (w[0],)
    yield 4, (x[0], groups * taps, *typed.shape_of_rank(2, 4)[2:])


def _weights(typed: _TypedNode, i: int) -> Iterator[tuple[int, _Shape]]:
    x, w = typed.shape_of_rank(0, 3, 5), typed.shape_of_rank(i, 3, 5)
    groups = typed.read.integer("group", 1)
    if groups < 1 or x[1] % groups or w[0] % groups:
        raise typed.refuse(f"{x[1]} channels to {w[0]} are not {groups} groups")
    kernel = typed.read.integers("kernel_shape", ()) or (None,) * (len(x) - 2)
    yield i, (None, x[1] // groups, *kernel)


def _conv_transpose(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    x, w = typed.shape_of_rank(0, 3, 5), typed.shape_of_rank(1, 3, 5)
    groups = typed.read.integer("group", 1)
    if groups < 1 or x[1] % groups:
        raise typed.refuse(f"{x[1]} channels are not {groups} groups")
    kernel = typed.read.integers("kernel_shape", ()) or (None,) * (len(x) - 2)
    yield 1, (x[1], None, *kernel)
    yield 2, (w[1] * groups,)


def _conv_integer(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    yield from _weights(typed, 1)
    yield from _one_or(typed, 2)
    yield from _one_or(typed, 3, typed.shape_of_rank(1, 3, 5)[0])


def _qlinear_conv(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    yield from _weights(typed, 3)
    outs = typed.shape_of_rank(3, 3, 5)[0]
    for i in (1, 2, 6, 7):
        yield from _one_or(typed, i)
    for i in (4, 5):
        yield from _one_or(typed, i, outs)
    yield 8, (outs,)


def _matmul_integer(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    yield from _matmul_scales(typed, 0, (2,))
    yield from _matmul_scales(typed, 1, (3,))


def _qlinear_matmul(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    yield from _matmul_scales(typed, 0, (1, 2))
    yield from _matmul_scales(typed, 3, (4, 5))


def _matmul_scales(typed: _TypedNode, i: int, which: tuple[int, ...]) -> Iterator[tuple[int, _Shape]]:
    """One scale for all, one for each row of A (input 0) or column of B, or an array that broadcasts to
    these.
    """
    x = typed.shape_of_rank(i, 1, 99)
    whole = x if len(x) > 1 else (1, *x) if i == 0 else (*x, 1)
    to = (*whole[:-1], 1) if i == 0 else (*whole[:-2], 1, whole[-1])
    for k in which:
        shape = typed.shape(k)
        if shape is not None and len(shape) == 1:
            yield from _one_or(typed, k, whole[-2] if i == 0 else whole[-1])
        else:
            yield from _broadcast(typed, k, to)


def _one_or(typed: _TypedNode, i: int, n: int | None = None) -> Iterator[tuple[int, _Shape]]:
    """One element, or `n` in a vector."""
    if typed.shape(i) not in (None, (), (1,)):
        yield i, () if n is None else (n,)


def _per_channel(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    x = typed.shape_of_rank(0, 1, 99)
    for i in range(1, len(typed.node.input)):
        yield i, (x[1] if len(x) > 1 else 1,)


def _group_normalization(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    """Scale and bias are per group before opset 21, then per channel."""
    x = typed.shape_of_rank(0, 2, 99)
    groups = typed.read.integer("num_groups", 1)
    if groups < 1 or x[1] % groups:
        raise typed.refuse(f"{x[1]} channels are not {groups} groups")
    scale = typed.shape_of_rank(1, 1)
    yield 1, (groups if scale == (groups,) else x[1],)
    yield 2, scale


def _norm_parameters(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    x = typed.shape_of_rank(0, 1, 99)
    axis = typed.read.integer("axis", -1)
    for i in (1, 2):
        yield from _broadcast(typed, i, x[axis:] if axis else x)


def _slope(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    yield from _broadcast(typed, 1, typed.shape_of_rank(0, 0, 99))


def _gemm(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    a, b = typed.shape_of_rank(0, 2), typed.shape_of_rank(1, 2)
    rows = a[1 if typed.read.flag("transA") else 0]
    columns = b[0 if typed.read.flag("transB") else 1]
    yield from _broadcast(typed, 2, (rows, columns))


def _broadcast(typed: _TypedNode, i: int, to: tuple[int, ...]) -> Iterator[tuple[int, _Shape]]:
    """Input `i` may be broadcast to `to`, not the reverse."""
    shape = typed.shape(i)
    if shape is not None:
        padded = (1,) * (len(to) - len(shape)) + shape
        if len(padded) != len(to) or any(p not in (1, t) for p, t in zip(padded, to, strict=True)):
            yield i, to


def _along_axis(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    """Indices lie inside the data along all axes but one; updates have the indices' shape."""
    data = typed.shape_of_rank(0, 1, 99)
    indices = typed.shape_of_rank(1, len(data))
    axis = typed.read.integer("axis", 0) % len(data)
    for d, (n, most) in enumerate(zip(indices, data, strict=True)):
        if n > most and d != axis:
            yield 1, tuple(None if a == axis else size for a, size in enumerate(data))
    yield 2, indices


def _scatter_nd(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    data, indices = typed.shape_of_rank(0, 1, 99), typed.shape_of_rank(1, 1, 99)
    if indices[-1] > len(data):
        raise typed.refuse(f"indices of {indices[-1]} numbers into {len(data)} axes")
    yield 2, (*indices[:-1], *data[indices[-1] :])


def _gather_nd(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    data, indices = typed.shape_of_rank(0, 1, 99), typed.shape_of_rank(1, 1, 99)
    batch = typed.read.integer("batch_dims", 0)
    if indices[-1] > len(data) - batch:
        raise typed.refuse(f"indices of {indices[-1]} numbers into {len(data) - batch} axes")
    yield 1, (*data[:batch], *(None,) * (len(indices) - batch))


def _roi_align(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    _within(typed, "sampling_ratio", 0, 256)
    typed.shape_of_rank(0, 4)
    yield 1, (None, 4)
    yield 2, typed.shape_of_rank(1, 2)[:1]


def _norm(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    _within(typed, "p", 1, 64)
    yield from ()


def _within(typed: _TypedNode, name: str, least: int, most: int) -> None:
    """Check the limit of a loop count; larger values, which no real model has, would run for hours."""
    value = typed.read.integer(name, least)
    if not least <= value <= most:
        raise typed.refuse(f"{name} is {value}; {least} to {most} are supported")


def _grid_sample(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    x = typed.shape_of_rank(0, 3, 5)
    yield 1, (x[0], *(None,) * (len(x) - 2), len(x) - 2)


def _unpool(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    yield 1, typed.shape_of_rank(0, 3, 5)


def _quantization_scales(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    """One scale for all, for each position of an axis, or for each block; zero points have the shape of
    scales.
    """
    x, scale = typed.shape_of_rank(0, 0, 99), typed.shape_of_rank(1, 0, 99)
    block = typed.read.integer("block_size", 0)
    axis = typed.read.integer("axis", 1)
    if block < 0 or (block and not -len(x) <= axis < len(x)):
        raise typed.refuse(f"block_size is {block} along axis {axis} of {len(x)}")
    if block and len(scale) == len(x):
        blocked = list(x)
        blocked[axis] = -(-x[axis] // block)
        yield 1, tuple(blocked)
    elif scale not in ((), (1,)):
        yield 1, (x[axis],) if -len(x) <= axis < len(x) else ()
    else:
        yield from _one_or(typed, 2)
        return
    yield 2, scale


def _one_hot(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    yield from _one_or(typed, 1)
    yield 2, (2,)


def _reverse_sequence(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    x = typed.shape_of_rank(0, 2, 99)
    axes = typed.read.integer("batch_axis", 1), typed.read.integer("time_axis", 0)
    if sorted(axes) != [0, 1]:
        raise typed.refuse(f"batch_axis and time_axis are {axes}; one is 0, the other 1")
    yield 1, (x[axes[0]],)


def _recurrent(typed: _TypedNode) -> Iterator[tuple[int, _Shape]]:
    x, r = typed.shape_of_rank(0, 3), typed.shape_of_rank(2, 3)
    if typed.read.integer("layout", 0) not in (0, 1):
        raise typed.refuse(f"layout is {typed.read.integer('layout', 0)}; it is 0 or 1")
    if typed.read.text("direction", "forward") not in ("forward", "reverse", "bidirectional"):
        raise typed.refuse(f"direction is {typed.read.text('direction')!r}")
    is_batch_first = typed.read.integer("layout", 0) == 1
    batch = x[0] if is_batch_first else x[1]
    directions = 2 if typed.read.text("direction", "forward") == "bidirectional" else 1
    hidden, gates = r[2], {"LSTM": 4, "GRU": 3, "RNN": 1}[typed.node.op_type]
    if typed.read.integer("hidden_size", hidden) != hidden:
        size = typed.read.integer("hidden_size", hidden)
        raise typed.refuse(f"hidden_size is {size}, but {typed.node.input[2]!r} is for {hidden}")
    state = (batch, directions, hidden) if is_batch_first else (directions, batch, hidden)
    rows = gates * hidden
    yield 1, (directions, rows, x[2])
    yield 2, (directions, rows, hidden)
    yield 3, (directions, 2 * rows)
    yield 4, (batch,)
    yield 5, state
    yield 6, state
    yield 7, (directions, 3 * hidden)


_WINDOWED = frozenset(
    (
        *("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv"),
        *("AveragePool", "MaxPool", "LpPool", "MaxUnpool"),
    )
)

_RULES: Mapping[str, ShapeRule] = {
    "Conv": _conv,
    "DeformConv": _deform_conv,
    "ConvTranspose": _conv_transpose,
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
    "BatchNormalization": _per_channel,
    "InstanceNormalization": _per_channel,
    "GroupNormalization": _group_normalization,
    "LayerNormalization": _norm_parameters,
    "RMSNormalization": _norm_parameters,
    "PRelu": _slope,
    "Gemm": _gemm,
    "GatherElements": _along_axis,
    "ScatterElements": _along_axis,
    "Scatter": _along_axis,
    "ScatterND": _scatter_nd,
    "GatherND": _gather_nd,
    "RoiAlign": _roi_align,
    "LpPool": _norm,
    "GlobalLpPool": _norm,
    "GridSample": _grid_sample,
    "MaxUnpool": _unpool,
    "QuantizeLinear": _quantization_scales,
    "DequantizeLinear": _quantization_scales,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}
