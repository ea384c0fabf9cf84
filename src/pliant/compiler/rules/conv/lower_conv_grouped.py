"""Lower convolutions in groups of few channels, with constant weights."""

from functools import partial
from math import prod

import numpy as np

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, PackedConstant, Target
from pliant.compiler.rules.conv.conv_call import ConvShape, tensors_of
from pliant.ir.graph import Graph, Node
from pliant.kernels.conv import conv_grouped
from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.conv.conv_grouped import GroupedForm, most_pixels
from pliant.kernels.conv.conv_tile import COLUMNS
from pliant.kernels.emit.isa import Isa

_MOST_TAPS, _FEWEST_PIXELS, _MOST_PIXELS = 7, 4, 8
_MANY_REGISTERS, _MANY_PIXELS = 32, 14
"""Registers, and pixels of a tile: groups of whole vectors need one register per pixel and few others."""
_SCRATCH_BYTES, _UNITS_PER_THREAD = 256 << 10, 8
_SMALL = (2, 4, 8)
"""Channels of groups that share a vector; wider ones are whole panels."""


def is_grouped(node: Node, graph: Graph, s: ConvShape) -> bool:
    """Whether groups fill vectors, with at most two dimensions, a narrow window, and constant weights and
    bias.
    """
    known = all(x in graph.constants for x in node.inputs[1:3] if x)
    channels, outs = s.channels // max(s.groups, 1), s.outs // max(s.groups, 1)
    is_small = channels == outs and channels in _SMALL and s.outs >= COLUMNS
    is_wide = min(channels, outs) > 0 and channels % COLUMNS == outs % COLUMNS == 0
    if not known or s.groups == 1 or not (is_small or is_wide) or len(s.space) > 2:
        return False
    w = s.window
    is_plain = w.kernel[-1] <= _MOST_TAPS and min(w.begins) >= 0
    return is_plain and prod((s.batch, *s.space, *s.out_space)) > 0 and w.begins[-1] < _columns(s)


def lower_grouped(node: Node, graph: Graph, target: Target, form: ConvForm, s: ConvShape) -> LoweredNode:
    """The call, and weights in the order in which a tile reads them."""
    w, b = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else ""
    tensors = tensors_of(node, form, "grouped")
    grouped = _form(target.isa, form, s)
    panels = max(s.outs // s.groups // COLUMNS, 1)
    blocks = -(-s.outs // (panels * COLUMNS))
    taps = prod(s.window.kernel)
    packed = {
        tensors.weights: PackedConstant(
            4 * blocks * panels * COLUMNS * taps * grouped.channels,
            partial(_fill, source=graph.constants[w], panels=panels),
            w,
        ),
        tensors.bias: PackedConstant(
            4 * blocks * panels * COLUMNS,
            partial(_fill_bias, source=graph.constants.get(b), outs=s.outs, panels=panels),
            b,
        ),
    }
    columns, (in_h, in_w), (out_h, out_w) = (
        _columns(s, grouped.pixels),
        (1, *s.space)[-2:],
        (1, *s.out_space)[-2:],
    )
    kernel_h, stride_h, dilation_h, pad_h = (
        (other, *numbers)[-2]
        for other, numbers in zip(
            (1, 1, 1, 0),
            (s.window.kernel, s.window.strides, s.window.dilations, s.window.begins),
            strict=True,
        )
    )

    def rows(band: int) -> int:
        """Input rows that a band reads."""
        return (band - 1) * stride_h + (kernel_h - 1) * dilation_h + 1

    wanted = _UNITS_PER_THREAD * target.n_threads if target.n_threads > 1 else 1
    bands = min(-(-wanted // (s.batch * blocks)), out_h)
    while bands < out_h and 4 * rows(-(-out_h // bands)) * columns * grouped.width > _SCRATCH_BYTES:
        bands += 1
    band = -(-out_h // bands)
    bands = -(-out_h // band)
    fields: dict[str, FieldValue] = {
        **tensors.fields,
        "x_channels": s.channels,
        "y_channels": s.outs,
        "blocks": blocks,
        "panels": panels,
        "band": band,
        "bands": bands,
        "band_in": rows(band),
        "in_h": in_h,
        "in_w": in_w,
        "out_h": out_h,
        "out_w": out_w,
        "kernel_h": kernel_h,
        "stride_h": stride_h,
        "dilation_h": dilation_h,
        "pad_h": pad_h,
        "pad_w": s.window.begins[-1],
        "columns": columns,
        "copied": min(in_w, columns - s.window.begins[-1]),
        "low": node.real("low", 0.0),
        "high": node.real("high", 0.0),
    }
    call = Call(
        Kernel(grouped.name, partial(conv_grouped.grouped_ir, form=grouped)),
        conv_grouped.GroupedArgs,
        fields,
        n_units=s.batch * blocks * bands,
        reads=tensors.read,
        writes=(tensors.y,),
        scratch_bytes=conv_grouped.scratch_bytes(grouped, rows(band), columns, in_w, band * out_w),
        label=node.label,
    )
    return LoweredNode((call,), packed=packed)


def _form(isa: Isa, ends: ConvForm, s: ConvShape) -> GroupedForm:
    w, channels = s.window, s.channels // s.groups
    is_roomy = isa.registers >= _MANY_REGISTERS and channels >= isa.lanes
    most = min(_MANY_PIXELS if is_roomy else _MOST_PIXELS, most_pixels(isa, w.kernel[-1]))
    pixels = _pixels(s.out_space[-1], most)
    return GroupedForm(channels, w.kernel[-1], w.strides[-1], w.dilations[-1], pixels, ends)


def _pixels(out_w: int, most: int) -> int:
    """Pixels per tile that cover a row in the least time; each tile costs about one extra pixel."""
    sizes = range(_FEWEST_PIXELS, most + 1)
    return min(sizes, key=lambda n: (-(-out_w // n) * (n + 1), -n))


def _columns(s: ConvShape, pixels: int = 1) -> int:
    """Columns of a row in scratch: those that its tiles read; the last tile may extend beyond the image."""
    w = s.window
    covered = -(-s.out_space[-1] // pixels) * pixels
    return (covered - 1) * w.strides[-1] + (w.kernel[-1] - 1) * w.dilations[-1] + 1


def _fill(memory: np.ndarray, source: np.ndarray, panels: int) -> None:
    """[out][channel][h, w] as [block][panel][h][channel][w][16]."""
    if source.ndim == 3:
        source = source[:, :, None]
    turned = source.transpose(2, 1, 3, 0)
    blocks = [turned[..., n : n + COLUMNS] for n in _panels(len(source), panels)]
    memory[:] = np.stack(blocks).reshape(-1).view(np.uint8)


def _fill_bias(memory: np.ndarray, source: np.ndarray | None, outs: int, panels: int) -> None:
    bias = np.zeros(outs, np.float32) if source is None else source
    memory[:] = np.stack([bias[n : n + COLUMNS] for n in _panels(outs, panels)]).reshape(-1).view(np.uint8)


def _panels(outs: int, panels: int) -> list[int]:
    """The first output channel of each panel; the last block ends at the last channel."""
    block = panels * COLUMNS
    starts = [min(n, outs - block) for n in range(0, outs, block)]
    return [n + i for n in starts for i in range(0, block, COLUMNS)]
