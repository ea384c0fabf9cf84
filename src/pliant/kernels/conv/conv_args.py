"""The arguments of a convolution: its C structure and its compile-time form."""

import ctypes
from dataclasses import dataclass
from typing import Literal

ImageLayout = Literal["nchw", "nhwc"]
"""Order of an activation's dimensions in memory: channels before or after the 1 to 3 spatial ones."""

_INTEGERS = (
    "channels",  # of x, in one group
    "x_channels",
    "out_channels",  # of y, in one group
    "y_channels",
    "groups",
    "panels",  # of 16 output channels, in one group
    "unit_panels",
    "panel_blocks",
    "pixels",  # of one output image
    "unit_pixels",
    "pixel_blocks",
    "in_d",
    "in_h",
    "in_w",
    "out_h",
    "out_w",
    "kernel_h",
    "stride_d",
    "stride_h",
    "stride_w",
    "dilation_d",
    "dilation_h",
    "dilation_w",
    "pad_d",
    "pad_h",
    "pad_w",
    "run_length",
    "runs_w",
    "depth",
    "padded_depth",
    "is_direct",
)


class ConvArgs(ctypes.Structure):
    """y = activation(conv(x, w) + bias + residual), float32; 1 and 2 dimensions are padded to 3 with leading
    ones.

    The depth K of the matrix product runs over (kernel d, h, w, channel). It is divided into runs of
    `run_length` values that are adjacent in a channels-last image: the channels of one tap, or of a whole
    kernel row; a kernel row has `runs_w` of them. `weights` are panels of 16 output channels,
    [groups][panels][padded_depth][16] padded with zeros; `bias` is [groups][panels * 16]. `is_direct`: a
    channels-last image is the matrix itself: 1x1, stride 1, K a multiple of 4. `residual`, in y's layout, may
    be null unless the form has one. `low` and `high` are the activation's parameters.
    """

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in _INTEGERS],
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class ConvForm:
    """The compile-time parameters of a convolution."""

    x: ImageLayout = "nchw"
    y: ImageLayout = "nchw"
    activation: str = ""
    has_residual: bool = False

    @property
    def name(self) -> str:
        ends = [self.activation] if self.activation else []
        return "_".join(["conv", self.x, self.y, *ends, *["residual"] * self.has_residual])
