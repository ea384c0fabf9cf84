"""Lower convolutions that a pass marked for Winograd's algorithm."""

from functools import partial

import numpy as np

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, PackedConstant, Target
from pliant.compiler.rules.conv.conv_call import ConvShape, tensors_of
from pliant.ir.graph import Graph, Node
from pliant.kernels.conv import conv_weights, winograd, winograd_matrices
from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.conv.conv_tile import COLUMNS

_SCRATCH_FLOATS = 1 << 18
"""Transformed inputs of a unit: more exceed the cache, fewer reuse weights too little."""
_FEWEST_TILES, _UNITS_PER_THREAD = 24, 4


def lower_winograd(node: Node, graph: Graph, target: Target, form: ConvForm, s: ConvShape) -> LoweredNode:
    """3x3, stride 1, channels last on both sides and multiples of 16, constant weights and bias."""
    w, b = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else ""
    assert form.x == form.y == "nhwc", "Winograd's kernel has channels last"
    assert s.channels % COLUMNS == 0, "channels are whole vectors"
    assert s.outs % COLUMNS == 0, "output channels are whole panels"
    tensors = tensors_of(node, form, "winograd")
    packed = {
        tensors.weights: PackedConstant(
            4 * winograd_matrices.PLACES * s.channels * s.outs, partial(_fill, source=graph.constants[w]), w
        ),
        tensors.bias: PackedConstant(
            4 * s.outs, partial(_fill_bias, source=graph.constants.get(b), outs=s.outs), b
        ),
    }
    out_h, out_w = s.out_space
    tiles_w = -(-out_w // winograd_matrices.OUTPUTS)
    tiles = -(-out_h // winograd_matrices.OUTPUTS) * tiles_w
    unit_tiles, unit_panels = _units(s, tiles, target.n_threads)
    panels = s.outs // COLUMNS
    tile_blocks, panel_blocks = -(-tiles // unit_tiles), -(-panels // unit_panels)
    fields: dict[str, FieldValue] = {
        **tensors.fields,
        "channels": s.channels,
        "out_channels": s.outs,
        "in_h": s.space[0],
        "in_w": s.space[1],
        "out_h": out_h,
        "out_w": out_w,
        "pad_h": s.window.begins[0],
        "pad_w": s.window.begins[1],
        "tiles": tiles,
        "tiles_w": tiles_w,
        "unit_tiles": unit_tiles,
        "tile_blocks": tile_blocks,
        "unit_panels": unit_panels,
        "panel_blocks": panel_blocks,
        "low": node.real("low", 0.0),
        "high": node.real("high", 0.0),
    }
    call = Call(
        Kernel(winograd.name(form), partial(winograd.winograd_ir, form=form)),
        winograd.WinogradArgs,
        fields,
        n_units=s.batch * tile_blocks * panel_blocks,
        reads=tensors.read,
        writes=(tensors.y,),
        scratch_bytes=winograd.scratch_bytes(target.isa, s.channels, unit_tiles),
        label=node.label,
    )
    return LoweredNode((call,), packed=packed)


def _units(s: ConvShape, tiles: int, n_threads: int) -> tuple[int, int]:
    """Tiles and panels of a unit: as many tiles as the cache holds, and some units for every thread."""
    fit = max(_FEWEST_TILES, _SCRATCH_FLOATS // (winograd_matrices.PLACES * s.channels) // 6 * 6)
    blocks = -(-tiles // fit)
    unit_tiles = -(-tiles // blocks)
    unit_panels = s.outs // COLUMNS
    wanted = _UNITS_PER_THREAD * n_threads if n_threads > 1 else 1
    while s.batch * blocks * -(-(s.outs // COLUMNS) // unit_panels) < wanted and unit_panels > 2:
        unit_panels = -(-unit_panels // 2)
    return unit_tiles, unit_panels


def _fill(memory: np.ndarray, source: np.ndarray) -> None:
    memory[:] = winograd_matrices.pack(source).reshape(-1).view(np.uint8)


def _fill_bias(memory: np.ndarray, source: np.ndarray | None, outs: int) -> None:
    memory[:] = conv_weights.pack_bias(source, outs, 1).reshape(-1).view(np.uint8)
