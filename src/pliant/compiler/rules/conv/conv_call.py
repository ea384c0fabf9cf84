"""One call of the convolution kernel."""

from dataclasses import dataclass
from functools import partial
from math import prod

from pliant.compiler.executable.call import Call, FieldValue, Kernel, Ref, Target
from pliant.compiler.rules.conv.window_extents import Window, axis_fields
from pliant.ir.graph import Node
from pliant.kernels.conv import conv, conv_tile, conv_weights
from pliant.kernels.conv.conv_args import ConvArgs, ConvForm

_POINT = Window((1,), (1,), (1,), (0,), (0,))


@dataclass(frozen=True, slots=True)
class ConvShape:
    """Extents of one convolution: channels of x, `outs` of y, and the spatial dimensions of both."""

    window: Window
    batch: int
    groups: int
    channels: int
    outs: int
    space: tuple[int, ...]
    out_space: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConvTensors:
    """Names: weights and bias are packed, the residual is "" if there is none."""

    x: str
    weights: str
    bias: str
    y: str
    residual: str = ""

    @property
    def fields(self) -> dict[str, FieldValue]:
        """The tensors by the field names of convolution kernels."""
        return {
            "x": Ref(self.x),
            "weights": Ref(self.weights),
            "bias": Ref(self.bias),
            "residual": Ref(self.residual) if self.residual else None,
            "y": Ref(self.y),
        }

    @property
    def read(self) -> tuple[str, ...]:
        return tuple(name for name in (self.x, self.weights, self.bias, self.residual) if name)


def tensors_of(node: Node, form: ConvForm, packing: str) -> ConvTensors:
    """The tensors of a convolution; weights and bias get names of their own, for packing.

    Images of other sizes share packed constants by name, and may take other kernels: `packing` states the
    order in memory.
    """
    y = node.outputs[0]
    residual = node.inputs[3] if form.has_residual else ""
    return ConvTensors(node.inputs[0], f"{y}:weights|{packing}", f"{y}:bias|{packing}", y, residual)


def matrix_shape(rows: int, depth: int, columns: int) -> ConvShape:
    """A plain product of [rows, depth] and [depth, columns], channels last."""
    return ConvShape(_POINT, 1, 1, depth, columns, (rows,), (rows,))


def conv_call(
    tensors: ConvTensors,
    form: ConvForm,
    s: ConvShape,
    target: Target,
    label: str,
    bounds: tuple[float, float] = (0.0, 0.0),
) -> Call:
    """The call that makes y; `bounds` are the activation's parameters."""
    channels, outs = s.channels // s.groups, s.outs // s.groups
    taps = prod(s.window.kernel)
    depth, pixels, panels = channels * taps, prod(s.out_space), conv_weights.n_panels(outs)
    is_merged = form.x == "nhwc" and s.groups == 1 and s.window.dilations[-1] == 1
    run = channels * s.window.kernel[-1] if is_merged else channels
    is_point = taps == 1 and set(s.window.strides) == {1} and not any(s.window.begins + s.window.ends)
    cut = conv.divide_units(target.isa, s.batch * s.groups, pixels, panels, target.n_threads)
    panel_blocks, pixel_blocks = -(-panels // cut.unit_panels), -(-pixels // cut.unit_pixels)
    fields: dict[str, FieldValue] = {
        **tensors.fields,
        "channels": channels,
        "x_channels": s.channels,
        "out_channels": outs,
        "y_channels": s.outs,
        "groups": s.groups,
        "panels": panels,
        "unit_panels": cut.unit_panels,
        "panel_blocks": panel_blocks,
        "pixels": pixels,
        "unit_pixels": cut.unit_pixels,
        "pixel_blocks": pixel_blocks,
        **axis_fields("in", s.space, 1),
        **{k: n for k, n in axis_fields("out", s.out_space, 1).items() if k != "out_d"},
        **{k: n for k, n in s.window.fields().items() if k not in ("kernel_d", "kernel_w")},
        "run_length": run,
        "runs_w": 1 if is_merged else s.window.kernel[-1],
        "depth": depth,
        "padded_depth": conv_weights.padded(depth),
        "is_direct": int(is_point and depth % conv_tile.UNROLL == 0),
        "low": bounds[0],
        "high": bounds[1],
    }
    return Call(
        Kernel(form.name, partial(conv.conv_ir, form=form)),
        ConvArgs,
        fields,
        n_units=s.batch * s.groups * pixel_blocks * panel_blocks if pixels else 0,
        reads=tensors.read,
        writes=(tensors.y,),
        scratch_bytes=conv.scratch_bytes(target.isa, cut),
        label=label,
    )
