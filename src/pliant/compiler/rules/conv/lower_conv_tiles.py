"""Lower float32 convolutions for tiles: numbers split into two bfloat16, or rounded if the node has
`bf16`.
"""

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, PackedConstant, Ref, Target
from pliant.compiler.rewrite.view import View, read_view, row_major
from pliant.compiler.rules.conv.conv_call import ConvShape, ConvTensors, tensors_of
from pliant.compiler.rules.conv.weight_panels import split_calls
from pliant.compiler.rules.conv.window_extents import axis_fields
from pliant.compiler.rules.move.lower_pad import frame_calls, zero_for
from pliant.compiler.rules.product.bf16_calls import round_call
from pliant.compiler.rules.tile_cycles import ROWS, SPLIT, TERMS, cycles_in_tiles, cycles_in_vectors
from pliant.ir.graph import Graph, Node
from pliant.kernels.coded.gemm_bf16 import pack_pairs, pairs_shape
from pliant.kernels.conv import conv_bf16, conv_weights
from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.conv.conv_bf16 import PANELS, TiledConvArgs
from pliant.kernels.conv.conv_tile import COLUMNS
from pliant.kernels.conv.winograd_matrices import OUTPUTS, PLACES

_UNIT_ROWS, _UNITS_PER_THREAD = 256, 4
"""Rows of a unit, and units per thread: for each unit a panel of weights is read from L2, where the sums
stay.
"""
_WIDE_PIXEL = 64
"""From this many channels on, pixels are split one by one."""
_TRANSFORMS = 13
"""Average cycles of Winograd's input and output transforms per channel and tile."""


@dataclass(frozen=True, slots=True)
class ImageFrame:
    """How a convolution reads its image: `space` with borders, `channels` rounded up to even, runs of the
    depth.

    `out` are the output's extents. With a `line_step` other than 0, a segment has several lines: the tiles of
    a line continue those of the previous one, across the borders between them. `is_copied`: the image has to
    be copied to this layout.
    """

    space: tuple[int, ...]
    channels: int
    run: int
    runs: int
    out: tuple[int, ...]
    line_step: int
    is_copied: bool

    @property
    def row_tiles(self) -> int:
        """Row tiles of all lines, including unused rows."""
        lines, width = prod(self.out[:-1]), self.out[-1]
        return -(-lines * self.line_step // ROWS) if self.line_step else lines * -(-width // ROWS)


def frame_of(s: ConvShape, form: ConvForm) -> ImageFrame:
    """With windows of one pixel, all pixels are one line; with stride 1, a segment may have several lines."""
    w, channels = s.window, s.channels + s.channels % 2
    space = tuple(n + a + b for n, a, b in zip(s.space, w.begins, w.ends, strict=True))
    taps, is_merged = prod(w.kernel), s.groups == 1 and w.dilations[-1] == 1
    run = channels // s.groups * (w.kernel[-1] if is_merged else 1)
    runs = taps // w.kernel[-1] if is_merged else taps
    is_copied = form.x == "nchw" or channels != s.channels or space != s.space
    if taps == 1 and set(w.strides) == {1} and space == s.space:
        line = (prod(space),)
        return ImageFrame(line, channels, run, runs, line, 0, is_copied)
    width, step = s.out_space[-1], space[-1]
    # With channels first, a line's pixels are stored as vectors that start at its first pixel.
    is_flat = len(space) > 1 and set(w.strides[-2:]) == {1} and form.y == "nhwc" and width <= _UNIT_ROWS
    line_step = step if is_flat and step <= -(-width // ROWS) * ROWS else 0
    return ImageFrame(space, channels, run, runs, s.out_space, line_step, is_copied)


def takes_tiles(node: Node, graph: Graph, target: Target, form: ConvForm, s: ConvShape) -> bool:
    """Whether a group's channels fill words, no border is cropped, and tiles take fewer cycles.

    An odd number of channels is padded in one group with constant weights.
    """
    is_known = _are_known(node, graph)
    is_even = (is_known and s.groups == 1) or s.channels // s.groups % 2 == 0
    w, sizes = s.window, (s.batch, s.groups, s.channels, s.outs, *s.space, *s.out_space)
    if not target.isa.has_tiles or not is_even or 0 in sizes or node.integer("x_gap", 0) > 0:
        return False
    return min(*w.begins, *w.ends) >= 0 and tiles_are_faster(
        s, form, is_winograd=_is_winograd(node), parts=_parts(node), is_known=is_known
    )


def tiles_are_faster(
    s: ConvShape, form: ConvForm, *, is_winograd: bool, parts: int, is_known: bool = True
) -> bool:
    """Whether images take fewer cycles in tiles, including framing and splitting them, and splitting weights
    that are not known before the run, which both pack.

    Tiles are slower if a group has few channels: they are half empty, or sums are loaded and stored for few
    products.
    """
    frame, channels, outs = frame_of(s, form), s.channels // s.groups, s.outs // s.groups
    panels = -(-conv_weights.n_panels(outs) // PANELS) * -(-frame.row_tiles * ROWS // _UNIT_ROWS)
    steps = frame.runs * -(-frame.run // TERMS)
    tiles = s.groups * cycles_in_tiles(frame.row_tiles, outs, steps, frame.runs, panels, parts)
    image = prod(frame.space) * frame.channels // (ROWS * TERMS)
    copied = SPLIT if frame.is_copied else 0
    vectors = cycles_in_vectors(prod(s.out_space), outs, channels * prod(s.window.kernel)) * s.groups
    if is_winograd:
        patches = -(-s.out_space[0] // OUTPUTS) * -(-s.out_space[1] // OUTPUTS)
        vectors = (
            cycles_in_vectors(patches * PLACES, outs, channels)
            + patches * _TRANSFORMS * (channels + outs) // 2
        )
    depth, of_weights = channels * prod(s.window.kernel), 0
    if not is_known:
        of_weights = s.groups * conv_weights.n_panels(outs) * -(-depth // TERMS) * SPLIT
    return s.batch * (tiles + image * (SPLIT + copied)) + of_weights < s.batch * vectors


def lower_tiles(
    node: Node, graph: Graph, target: Target, form: ConvForm, s: ConvShape, weights: View
) -> LoweredNode:
    """The image with its borders, its parts, and the products; constant weights are packed once.

    `weights` are [group][output channel][channel][tap].
    """
    frame, parts = frame_of(s, form), _parts(node)
    tensors = _tensors(node, form, s, frame)
    made = _frame_image(node, graph, form, s, frame)
    split, pixels = f"{tensors.y}:parts", s.batch * prod(frame.space)
    # Units of pixel rows divide even a single line among threads; narrow ones do not fill vectors.
    is_wide = frame.channels >= _WIDE_PIXEL
    width = 1 if is_wide else s.space[-1] + s.window.begins[-1] + s.window.ends[-1]
    depth, size = width * frame.channels, pixels * frame.channels
    rounding = round_call(
        Ref(f"{tensors.y}:framed" if frame.is_copied else tensors.x),
        (pixels // width, depth), depth, split, depth, target, node.label,
        is_split=parts == 2, part=size, in_rows=True,
    )  # fmt: skip
    call = _call(node, target, form, s, frame, parts)
    packing = _weights(node, graph, frame, parts, weights, (tensors.weights, tensors.bias))
    temporaries = {**made.temporaries, **packing.temporaries, split: 2 * parts * size}
    calls = (*packing.calls, *made.calls, rounding, call)
    return LoweredNode(calls, (), temporaries, {**made.packed, **packing.packed})


def _frame_image(node: Node, graph: Graph, form: ConvForm, s: ConvShape, frame: ImageFrame) -> LoweredNode:
    """The image channels last, with zeros around it and after an odd number of channels."""
    if not frame.is_copied:
        return LoweredNode()
    name, rank = f"{node.outputs[0]}:framed", len(s.space)
    shape = (s.batch, *(s.space if len(frame.space) < rank else frame.space), frame.channels)
    to = View(name, 0, shape, row_major(shape))
    x = graph.types[node.inputs[0]]
    image = View(node.inputs[0], 0, x.shape, x.strides)
    if form.x == "nchw":
        image = image.transposed((0, *range(2, rank + 2), 1))
    zero, packed = zero_for(node, graph)
    calls = frame_calls(image, (0, *s.window.begins, 0), to, zero, 4, node.label)
    return LoweredNode(calls, temporaries={name: 4 * prod(shape)}, packed=packed)


def _call(node: Node, target: Target, form: ConvForm, s: ConvShape, frame: ImageFrame, parts: int) -> Call:
    tensors, (lines, width) = _tensors(node, form, s, frame), (1, *frame.out)[-2:]
    outs = s.outs // s.groups
    panels, words = conv_weights.n_panels(outs), frame.channels // 2
    others = s.batch * s.groups * prod(frame.out[:-2])
    cut = _choose_unit(frame, lines, width, panels, others, target.n_threads)
    size = s.batch * prod(frame.space) * words
    panel_words = prod(pairs_shape(frame.run * frame.runs, outs)[1:3])
    of_image = (size // s.batch, size, words, words // s.groups)
    window = {**s.window.fields(), **axis_fields("frame", frame.space, 1), **axis_fields("out", frame.out, 1)}
    kept = {entry[0] for entry in TiledConvArgs._fields_}
    runs_w = frame.runs // prod(s.window.kernel[:-1])
    fields: dict[str, FieldValue] = {
        **tensors.fields,
        "x": Ref(f"{tensors.y}:parts"),
        **dict(zip(("image_words", "part_words", "pixel_words", "group_words"), of_image, strict=True)),
        **{name: n for name, n in window.items() if name in kept},
        **{"runs": frame.runs, "run_words": frame.run // 2, "runs_w": runs_w},
        **{"weights_part": 4 * s.groups * panels * panel_words, "panel_words": panel_words},
        **{"panels": panels, "groups": s.groups, "out_channels": outs, "y_channels": s.outs},
        **{"pixels": prod(frame.out), "line_step": frame.line_step, "segment_lines": cut.segment_lines},
        **{"unit_panels": cut.panels, "panel_blocks": -(-panels // cut.panels)},
        **{"unit_columns": cut.columns, "column_blocks": -(-width // cut.columns)},
        **{"unit_lines": cut.lines, "line_blocks": -(-lines // cut.lines)},
        **{"low": node.real("low", 0.0), "high": node.real("high", 0.0)},
    }
    return Call(
        Kernel(conv_bf16.tiles_name(form, parts), partial(conv_bf16.conv_tiles_ir, form=form, parts=parts)),
        TiledConvArgs,
        fields,
        n_units=cut.units(lines, width, panels) * others,
        reads=(f"{tensors.y}:parts", *(x for x in tensors.read if x != tensors.x)),
        writes=(tensors.y,),
        scratch_bytes=conv_bf16.scratch_bytes_tiles((cut.segment_lines - 1) * frame.line_step + cut.columns),
        label=node.label,
    )


@dataclass(frozen=True, slots=True)
class _UnitSize:
    """The size of a unit in lines of an image, pixels of a line, and panels; and the lines of a segment."""

    lines: int
    columns: int
    panels: int
    segment_lines: int

    def units(self, lines: int, width: int, panels: int) -> int:
        return -(-lines // self.lines) * -(-width // self.columns) * -(-panels // self.panels)


def _choose_unit(
    frame: ImageFrame, lines: int, width: int, panels: int, others: int, n_threads: int
) -> _UnitSize:
    """Rows that stay in L2 with their sums; panels, then lines, are reduced until every thread has some
    units.
    """
    columns = width if width <= _UNIT_ROWS else -(-width // -(-width // _UNIT_ROWS) // ROWS) * ROWS
    unit_lines, unit_panels = max(1, min(lines, _UNIT_ROWS // (frame.line_step or columns))), panels
    wanted = _UNITS_PER_THREAD * n_threads if n_threads > 1 else 1
    while True:
        cut = _UnitSize(unit_lines, columns, unit_panels, unit_lines if frame.line_step else 1)
        if others * cut.units(lines, width, panels) >= wanted or (unit_panels <= PANELS and unit_lines == 1):
            return cut
        if unit_panels > PANELS:
            unit_panels = -(-unit_panels // (2 * PANELS)) * PANELS
        else:
            unit_lines = -(-unit_lines // 2)


def _are_known(node: Node, graph: Graph) -> bool:
    """Whether weights and bias are constants."""
    return all(x in graph.constants for x in node.inputs[1:3] if x)


def _tensors(node: Node, form: ConvForm, s: ConvShape, frame: ImageFrame) -> ConvTensors:
    packing = f"tiles{_parts(node)}x{s.groups}x{frame.channels}x{frame.run}x{frame.runs}"
    return tensors_of(node, form, packing)


def _weights(
    node: Node, graph: Graph, frame: ImageFrame, parts: int, weights: View, names: tuple[str, str]
) -> LoweredNode:
    """Pairs of the rounded weights, then of their remainders, and the bias of each panel, by `names`."""
    b = node.inputs[2] if len(node.inputs) > 2 else ""
    groups, outs = weights.shape[:2]
    shape = pairs_shape(frame.run * frame.runs, outs)
    if not _are_known(node, graph):
        return split_calls(weights, b, names, 2 * shape[1], node.label)
    fill = partial(
        _fill,
        source=graph.constants[weights.tensor],
        weights=weights,
        channels=frame.channels // groups,
        parts=parts,
    )
    fill_bias = partial(_fill_bias, source=graph.constants.get(b), outs=groups * outs, groups=groups)
    return LoweredNode(
        packed={
            names[0]: PackedConstant(2 * parts * groups * prod(shape), fill, weights.tensor),
            names[1]: PackedConstant(4 * groups * shape[0] * COLUMNS, fill_bias, b),
        }
    )


def _fill(memory: np.ndarray, source: np.ndarray, weights: View, channels: int, parts: int) -> None:
    groups, outs, own, taps = weights.shape
    rows = np.zeros((groups, taps, channels, outs), np.float32)
    rows[:, :, :own] = read_view(source, weights).transpose(0, 3, 2, 1)
    matrices = rows.reshape(groups, -1, outs)
    shape = pairs_shape(*matrices.shape[1:])
    packed = memory.view(np.uint16).reshape(parts, groups, *shape)
    for group, matrix in enumerate(matrices):
        pack_pairs(matrix, packed[0, group], packed[1, group] if parts == 2 else None)


def _fill_bias(memory: np.ndarray, source: np.ndarray | None, outs: int, groups: int) -> None:
    memory[:] = conv_weights.pack_bias(source, outs, groups).reshape(-1).view(np.uint8)


def _parts(node: Node) -> int:
    """The number of bfloat16 parts per number."""
    return 1 if node.flag("bf16") else 2


def _is_winograd(node: Node) -> bool:
    return node.text("algorithm", "") == "winograd"
