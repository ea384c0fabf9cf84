"""Recognise weights stored as integers or half floats: (codes - zero) * scale + offset.

Exporters and quantizers write Cast, Sub, Mul, or DequantizeLinear by tensor, axis or block, over a constant,
with reshapes and transposes between.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pliant.compiler.rewrite.view import View, row_major
from pliant.ir.graph import Graph, Node

CODES = ("int8", "uint8", "int4", "uint4", "int2", "uint2", "int16", "uint16", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, eq=False)
class AffineWeights:
    """(codes - zero) * scale + offset in float32, where `codes` is a view of a constant of `dtype`.

    The parameters are float32 with the rank of the codes: along each dimension one value, one per block, or
    one per element. None is 0, or a scale of 1. `how` distinguishes different uses of the same constant.
    """

    codes: View
    dtype: str
    how: tuple[str, ...]
    scale: np.ndarray | None = None
    zero: np.ndarray | None = None
    offset: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    def values(self, constant: np.ndarray) -> np.ndarray:
        """The weights in float32, from the constant behind the codes."""
        made = dequantize(constant, self.codes, self.zero, self.scale)
        if self.offset is not None:
            made += repeat_blocks(self.offset, self.shape)
        return made

    def map_parameters(self, change: Callable[[np.ndarray], np.ndarray]) -> "AffineWeights":
        """The same with `change` applied to every parameter."""
        made = (None if p is None else change(p) for p in (self.scale, self.zero, self.offset))
        scale, zero, offset = made
        return replace(self, scale=scale, zero=zero, offset=offset)


def affine_weights(graph: Graph) -> dict[str, AffineWeights]:
    """Every float32 tensor of the graph that is computed this way from one constant, by name."""
    found: dict[str, AffineWeights] = {}
    for node in graph.nodes:
        rule = _RULES.get(node.op)
        made = None if rule is None else rule(graph, node, found)
        if made is not None and graph.types[node.outputs[0]].dtype == "float32":
            assert made.shape == graph.types[node.outputs[0]].shape, node
            found[node.outputs[0]] = replace(made, how=(*made.how, node.outputs[0]))
    return found


def read_view(constant: np.ndarray, view: View) -> np.ndarray:
    """A constant's values through a view, without a copy."""
    flat = np.ascontiguousarray(constant).reshape(-1)[view.offset :]
    steps = [flat.itemsize * s for s in view.strides]
    return np.lib.stride_tricks.as_strided(flat, view.shape, steps, writeable=False)


def dequantize(
    constant: np.ndarray, matrix: View, zeros: np.ndarray | None, scales: np.ndarray | None
) -> np.ndarray:
    """(codes - zeros) * scales in float32, dense, for the codes in the view `matrix` of a constant."""
    made: np.ndarray = read_view(constant, matrix).astype(np.float32, order="C")
    if zeros is not None:
        made -= repeat_blocks(zeros, matrix.shape)
    if scales is not None:
        made *= repeat_blocks(scales, matrix.shape)
    return made


def repeat_blocks(parameter: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`parameter` with per-block values repeated, so that it broadcasts to `shape`."""
    for axis, n in enumerate(shape):
        own = parameter.shape[axis]
        if own not in (1, n):
            parameter = np.repeat(parameter, n // own, axis)
    return parameter


def _start(graph: Graph, tensor: str) -> AffineWeights | None:
    codes = graph.constants.get(tensor)
    type_ = graph.types[tensor]
    if codes is None or type_.dtype not in CODES or not type_.shape or 0 in type_.shape:
        return None
    return AffineWeights(View(tensor, 0, type_.shape, row_major(type_.shape)), type_.dtype, ())


def _cast(graph: Graph, node: Node, found: Mapping[str, AffineWeights]) -> AffineWeights | None:
    return _start(graph, node.inputs[0])


def _dequantize(graph: Graph, node: Node, found: Mapping[str, AffineWeights]) -> AffineWeights | None:
    x, scale, zero = (*node.inputs, "")[:3]
    start = _start(graph, x)
    if start is None or any(p and p not in graph.constants for p in (scale, zero)):
        return None
    scales = graph.constants[scale].astype(np.float32)
    zeros = graph.constants[zero].astype(np.float32) if zero else None
    if scales.size == 1:
        one = (1,) * len(start.shape)
        return replace(start, scale=scales.reshape(one), zero=None if zeros is None else zeros.reshape(one))
    axis = node.integer("axis", 1) % len(start.shape)
    is_blocked = node.integer("block_size", 0) > 0
    if scales.ndim == 1 and not (is_blocked and len(start.shape) == 1):
        along = tuple(n if i == axis else 1 for i, n in enumerate(start.shape))
        return replace(
            start, scale=scales.reshape(along), zero=None if zeros is None else zeros.reshape(along)
        )
    return replace(start, scale=scales, zero=zeros) if _fits(scales.shape, start.shape) else None


def _fits(parameter: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(parameter) == len(shape) and all(n % p == 0 for p, n in zip(parameter, shape, strict=True))


def _arithmetic(graph: Graph, node: Node, found: Mapping[str, AffineWeights]) -> AffineWeights | None:
    """Sub, Add, Mul or Div of weights and a constant that broadcasts to them."""
    a, b = node.inputs
    x, other = (a, b) if a in found else (b, a)
    known = graph.constants.get(other)
    if x not in found or known is None or (x == b and node.op in ("Sub", "Div")):
        return None
    was = found[x]
    if known.ndim > len(was.shape) or graph.types[node.outputs[0]].shape != was.shape:
        return None
    number = known.astype(np.float32).reshape((1,) * (len(was.shape) - known.ndim) + known.shape)
    is_bare = was.scale is None and was.offset is None
    match node.op:
        case "Sub" | "Add" if is_bare and was.zero is None and _is_whole(was.dtype, number):
            return replace(was, zero=number if node.op == "Sub" else -number)
        case "Sub" | "Add":
            more = number if node.op == "Add" else -number
            offset = more if was.offset is None else _combine(np.add, was.offset, more)
            return None if offset is None else replace(was, offset=offset)
        case _:
            factor = number if node.op == "Mul" else np.float32(1) / number
            scale = factor if was.scale is None else _combine(np.multiply, was.scale, factor)
            if was.offset is None:
                return None if scale is None else replace(was, scale=scale)
            offset = _combine(np.multiply, was.offset, factor)
            return None if scale is None or offset is None else replace(was, scale=scale, offset=offset)


def _is_whole(dtype: str, number: np.ndarray) -> bool:
    return "int" in dtype and bool((np.rint(number) == number).all())


def _combine(function: np.ufunc, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Two parameters combined, with the finer blocks along each dimension; None if blocks overlap."""
    shape = tuple(max(m, n) for m, n in zip(a.shape, b.shape, strict=True))
    if any(n % m for p in (a, b) for m, n in zip(p.shape, shape, strict=True)):
        return None
    made: np.ndarray = function(repeat_blocks(a, shape), repeat_blocks(b, shape))
    return made


def _transpose(graph: Graph, node: Node, found: Mapping[str, AffineWeights]) -> AffineWeights | None:
    was = found.get(node.inputs[0])
    if was is None:
        return None
    perm = node.integers("perm", tuple(reversed(range(len(was.shape)))))
    assert isinstance(perm, tuple), perm
    order = [int(i) for i in perm]
    return replace(was, codes=was.codes.transposed(order)).map_parameters(lambda p: p.transpose(order))


def _reshape(graph: Graph, node: Node, found: Mapping[str, AffineWeights]) -> AffineWeights | None:
    """Dimensions split or joined, if each parameter remains one value, one per block, or one per element."""
    was = found.get(node.inputs[0])
    shape = graph.types[node.outputs[0]].shape
    if was is None or not was.codes.is_dense:
        return None
    parameters = [p for p in (was.scale, was.zero, was.offset) if p is not None]
    shapes = [_blocks_in(p.shape, was.shape, shape) for p in parameters]
    if any(s is None for s in shapes):
        return None
    by_shape = {p.shape: s for p, s in zip(parameters, shapes, strict=True)}
    view = View(was.codes.tensor, was.codes.offset, shape, row_major(shape))
    return replace(was, codes=view).map_parameters(lambda p: p.reshape(by_shape[p.shape]))


def _blocks_in(
    parameter: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[int, ...] | None:
    """A parameter's shape when its weights are reshaped; None if it has none.

    Both shapes are divided into the shortest runs of dimensions of equal sizes. Within a run the parameter
    must have one value, or one for each of some leading parts; these are distributed from the outermost
    dimension on.
    """
    made: list[int] = []
    i = j = 0
    while i < len(before) or j < len(after):
        first, start, left, right = i, j, 1, 1
        while left != right or (i, j) == (first, start):
            if left <= right and i < len(before):
                left, i = left * before[i], i + 1
            elif j < len(after):
                right, j = right * after[j], j + 1
            else:
                return None
        parts = _leading(parameter[first:i], before[first:i])
        dealt = None if parts is None else _distribute(parts, after[start:j])
        if dealt is None:
            return None
        made += dealt
    return tuple(made)


def _leading(parameter: tuple[int, ...], shape: tuple[int, ...]) -> int | None:
    """The number of leading parts of a run with one value each; None if values repeat."""
    parts, is_over = 1, False
    for p, n in zip(parameter, shape, strict=True):
        if (is_over and p != 1) or n % p:
            return None
        is_over = is_over or p < n
        parts *= p
    return parts


def _distribute(parts: int, shape: tuple[int, ...]) -> list[int] | None:
    """Distribute the values of `parts` leading parts of a run over its dimensions."""
    made = []
    for n in shape:
        own = min(parts, n)
        if n % own or parts % own:
            return None
        made.append(own)
        parts //= own
    return made if parts == 1 else None


_RULES: Mapping[str, Callable[[Graph, Node, Mapping[str, AffineWeights]], AffineWeights | None]] = {
    "Cast": _cast,
    "DequantizeLinear": _dequantize,
    "Transpose": _transpose,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _arithmetic),
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten"), _reshape),
}
