"""A plain matrix product as a call of the convolution's kernel. Knows rows and columns, no operator."""

from functools import partial

from pliant.compile.call import Call, Field, Kernel, Ref, Target
from pliant.kernels import conv, conv_tile, conv_weights
from pliant.kernels.conv_args import ConvArgs, ConvForm


def product(
    x: str,
    weights: str,
    bias: str,
    y: str,
    *,
    rows: int,
    depth: int,
    columns: int,
    target: Target,
    label: str,
) -> Call:
    """y[rows, columns] = x[rows, depth] @ weights + bias, both as panels of 16 columns (conv_weights)."""
    form = ConvForm("nhwc", "nhwc")
    panels = conv_weights.n_panels(columns)
    cut = conv.split(target.isa, 1, rows, panels, target.n_threads)
    panel_blocks, pixel_blocks = -(-panels // cut.unit_panels), -(-rows // cut.unit_pixels)
    ones = ("in_d", "in_h", "out_h", "kernel_h", "runs_w")
    steps = [f"{name}_{axis}" for name in ("stride", "dilation") for axis in "dhw"]
    fields: dict[str, Field] = {
        **dict.fromkeys([*ones, *steps, "groups"], 1),
        "x": Ref(x),
        "weights": Ref(weights),
        "bias": Ref(bias),
        "y": Ref(y),
        "channels": depth,
        "x_channels": depth,
        "out_channels": columns,
        "y_channels": columns,
        "panels": panels,
        "unit_panels": cut.unit_panels,
        "panel_blocks": panel_blocks,
        "pixels": rows,
        "unit_pixels": cut.unit_pixels,
        "pixel_blocks": pixel_blocks,
        "in_w": rows,
        "out_w": rows,
        "run_length": depth,
        "depth": depth,
        "padded_depth": conv_weights.padded(depth),
        "is_direct": int(depth % conv_tile.UNROLL == 0),
    }
    return Call(
        Kernel(form.name, partial(conv.conv_ir, form=form)),
        ConvArgs,
        fields,
        n_units=pixel_blocks * panel_blocks if rows else 0,
        reads=(x, weights, bias),
        writes=(y,),
        scratch_bytes=conv.scratch_bytes(target.isa, cut),
        label=label,
    )
