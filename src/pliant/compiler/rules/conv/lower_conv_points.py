"""Lower grouped 1x1 convolutions between channels-first images, with constant weights."""

from functools import partial
from math import prod

import numpy as np

from pliant.compiler.executable.call import Call, Kernel, LoweredNode, PackedConstant, Target
from pliant.compiler.rules.conv.conv_call import ConvShape, tensors_of
from pliant.ir.graph import Graph, Node
from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.conv.direct import conv_pointwise
from pliant.kernels.conv.direct.conv_pointwise import PointwiseArgs, PointwiseForm, tile_vectors
from pliant.kernels.emit.isa import Isa

_ROWS = range(2, 9)
"""Output channels per tile: more would leave no registers for pixels."""
_WIDEST = 16
"""Lanes of the widest vectors: the least number of pixels of an image."""
_BLOCK_BYTES, _UNITS_PER_THREAD = 16 << 10, 4


def is_points(node: Node, graph: Graph, s: ConvShape) -> bool:
    """Whether there are several groups, windows of one pixel, at least a vector of pixels, and constant
    weights and bias.
    """
    known = all(x in graph.constants for x in node.inputs[1:3] if x)
    w = s.window
    is_point = prod(w.kernel) == 1 and set(w.strides) == {1} and not any((*w.begins, *w.ends))
    if not known or s.groups == 1 or not is_point:
        return False
    return s.batch > 0 and min(s.channels, s.outs) >= s.groups and prod(s.out_space) >= _WIDEST


def lower_points(node: Node, graph: Graph, target: Target, form: ConvForm, s: ConvShape) -> LoweredNode:
    """The call, and weights in the order in which a tile reads them."""
    w, b = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else ""
    channels, outs, pixels = s.channels // s.groups, s.outs // s.groups, prod(s.out_space)
    rows = tile_rows(target.isa, outs, pixels)
    points = PointwiseForm(rows, form.activation, form.has_residual)
    tensors = tensors_of(node, form, f"points{rows}")
    order = _order(s.groups, outs, rows)
    packed = {
        tensors.weights: PackedConstant(
            4 * order.size * channels, partial(_fill, source=graph.constants[w], order=order), w
        ),
        tensors.bias: PackedConstant(
            4 * order.size, partial(_fill_bias, source=graph.constants.get(b), order=order), b
        ),
    }
    unit_pixels = _unit_pixels(target, s.batch * s.groups, channels, pixels, rows)
    pixel_blocks = -(-pixels // unit_pixels)
    call = Call(
        Kernel(points.name, partial(conv_pointwise.pointwise_ir, form=points)),
        PointwiseArgs,
        {
            **tensors.fields,
            "groups": s.groups,
            "channels": channels,
            "outs": outs,
            "blocks": order.shape[1],
            "pixels": pixels,
            "unit_pixels": unit_pixels,
            "pixel_blocks": pixel_blocks,
            "low": node.real("low", 0.0),
            "high": node.real("high", 0.0),
        },
        n_units=s.batch * s.groups * pixel_blocks,
        reads=tensors.read,
        writes=(tensors.y,),
        label=node.label,
    )
    return LoweredNode((call,), packed=packed)


def tile_rows(isa: Isa, outs: int, pixels: int) -> int:
    """Output channels per tile that cover a group in the least time.

    For each channel of x a tile costs one step per multiplication, and half a step per vector and weight
    read.
    """

    def cost(rows: int) -> float:
        most = tile_vectors(isa, rows)
        tiles, left = divmod(-(-pixels // isa.lanes), most)
        steps = tiles * (rows * most + (rows + most) / 2) + (rows * left + (rows + left) / 2 if left else 0)
        return -(-outs // rows) * steps

    return min((n for n in _ROWS if n <= outs), key=cost, default=1)


def _unit_pixels(target: Target, parts: int, channels: int, pixels: int, rows: int) -> int:
    """Pixels of a unit: whole tiles whose channels stay in L1, or fewer if there are too few units for the
    threads.
    """
    tile = tile_vectors(target.isa, rows) * target.isa.lanes
    most = max(_BLOCK_BYTES // (4 * channels * tile), 1) * tile
    wanted = _UNITS_PER_THREAD * target.n_threads if target.n_threads > 1 else 1
    blocks = max(-(-pixels // most), min(-(-wanted // parts), -(-pixels // tile)))
    return -(-pixels // blocks // tile) * tile


def _order(groups: int, outs: int, rows: int) -> np.ndarray:
    """[group][block][row] of output channels; the last block ends at the group's last channel."""
    starts = np.minimum(np.arange(0, outs, rows), outs - rows)
    return np.arange(groups)[:, None, None] * outs + starts[:, None] + np.arange(rows)


def _fill(memory: np.ndarray, source: np.ndarray, order: np.ndarray) -> None:
    """[out][channel] as [group][block][channel][row]."""
    turned = source.reshape(len(source), -1)[order].swapaxes(2, 3)
    memory[:] = np.ascontiguousarray(turned, np.float32).reshape(-1).view(np.uint8)


def _fill_bias(memory: np.ndarray, source: np.ndarray | None, order: np.ndarray) -> None:
    bias = np.zeros(order.max() + 1, np.float32) if source is None else source
    memory[:] = np.ascontiguousarray(bias[order], np.float32).reshape(-1).view(np.uint8)
