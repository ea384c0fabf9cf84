"""Weights of convolutions as views, and the calls that pack those that are known only at run time."""

from math import prod

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, Ref
from pliant.compiler.rewrite.view import View, row_major
from pliant.compiler.rules.conv.conv_call import ConvShape
from pliant.kernels.conv import conv_weights
from pliant.kernels.conv.conv_tile import COLUMNS
from pliant.kernels.tiles import split_panels


def weights_view(w: str, s: ConvShape) -> View:
    """A convolution's weights [group][output channel][channel][tap]."""
    shape = s.groups, s.outs // s.groups, s.channels // s.groups, prod(s.window.kernel)
    return View(w, 0, shape, row_major(shape))


def transposed_weights_view(w: str, s: ConvShape) -> View:
    """The same view of a transposed convolution's weights [channel][output channel][tap], without taps.

    `s` is the convolution of single pixels whose output channels are all taps of all output channels.
    """
    shape = s.groups, s.channels // s.groups, s.outs // s.groups, 1
    return View(w, 0, shape, row_major(shape)).transposed((0, 2, 1, 3))


def pack_calls(weights: View, bias: str, names: tuple[str, str], depth: int, label: str) -> LoweredNode:
    """`weights`, whose taps are adjacent, and a bias ("" if it is 0), as float32 panels of `depth` rows.

    `names` are the tensors of panels and bias.
    """
    groups, outs, channels, taps = weights.shape
    panels = groups * conv_weights.n_panels(outs)
    fields: dict[str, FieldValue] = {
        "w": weights.ref(4),
        "b": Ref(bias) if bias else None,
        "packed": Ref(names[0]),
        "bias": Ref(names[1]),
        "panels": conv_weights.n_panels(outs),
        "out_channels": outs,
        "channels": channels,
        "taps": taps,
        "padded_depth": depth,
        **dict(zip(("group_step", "row_step", "channel_step"), weights.strides[:3], strict=True)),
    }
    call = Call(
        Kernel(conv_weights.PACK, conv_weights.pack_ir),
        conv_weights.PackArgs,
        fields,
        n_units=panels,
        reads=(weights.tensor, bias) if bias else (weights.tensor,),
        writes=names,
        label=label,
    )
    row_bytes = 4 * COLUMNS
    return LoweredNode(
        (call,), (), dict(zip(names, (row_bytes * panels * depth, row_bytes * panels), strict=True))
    )


def split_calls(weights: View, bias: str, names: tuple[str, str], depth: int, label: str) -> LoweredNode:
    """The same, with panels split into pairs of bfloat16: the nearest ones of all panels, then the rest."""
    plain = f"{names[0]}:plain"
    packed = pack_calls(weights, bias, (plain, names[1]), depth, label)
    groups, outs = weights.shape[:2]
    panels = groups * conv_weights.n_panels(outs)
    fields: dict[str, FieldValue] = {
        "x": Ref(plain),
        "words": Ref(names[0]),
        "depth": depth,
        "part_words": panels * depth // 2 * COLUMNS,
    }
    call = Call(
        Kernel(split_panels.SPLIT_PANELS, split_panels.split_panels_ir),
        split_panels.SplitPanelsArgs,
        fields,
        n_units=panels,
        reads=(plain,),
        writes=(names[0],),
        label=label,
    )
    sizes = {**packed.temporaries, names[0]: packed.temporaries[plain]}
    return LoweredNode((*packed.calls, call), (), sizes)
