"""MobileNetV3-Large and EfficientNet-B0 as torch modules: inverted residuals with squeeze and excitation.

The architectures are torchvision's, layer for layer.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

Activation = Callable[[], nn.Module]


@dataclass(frozen=True, slots=True)
class Block:
    """One inverted residual; `squeezed` are the channels of its excitation, None for no excitation."""

    channels: int
    expanded: int
    outs: int
    kernel: int
    stride: int
    squeezed: int | None


@dataclass(frozen=True, slots=True)
class Style:
    """Activations of a network's excitations, and the epsilon of its batch norms."""

    squeeze: Activation
    scale: Activation
    eps: float


_V3 = Style(nn.ReLU, nn.Hardsigmoid, 1e-3)
_EFFICIENT = Style(nn.SiLU, nn.Sigmoid, 1e-5)

# Channels, kernel, expanded, outs, squeezed, Hardswish, stride.
_LARGE = (
    (16, 3, 16, 16, None, False, 1),
    (16, 3, 64, 24, None, False, 2),
    (24, 3, 72, 24, None, False, 1),
    (24, 5, 72, 40, 24, False, 2),
    (40, 5, 120, 40, 32, False, 1),
    (40, 5, 120, 40, 32, False, 1),
    (40, 3, 240, 80, None, True, 2),
    (80, 3, 200, 80, None, True, 1),
    (80, 3, 184, 80, None, True, 1),
    (80, 3, 184, 80, None, True, 1),
    (80, 3, 480, 112, 120, True, 1),
    (112, 3, 672, 112, 168, True, 1),
    (112, 5, 672, 160, 168, True, 2),
    (160, 5, 960, 160, 240, True, 1),
    (160, 5, 960, 160, 240, True, 1),
)
# Expansion, kernel, stride, channels, outs, blocks.
_B0 = (
    (1, 3, 1, 32, 16, 1),
    (6, 3, 2, 16, 24, 2),
    (6, 5, 2, 24, 40, 2),
    (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3),
    (6, 5, 2, 112, 192, 4),
    (6, 3, 1, 192, 320, 1),
)


class SqueezeExcitation(nn.Module):
    """Scales the image's channels by the output of two 1x1 convolutions over their means."""

    def __init__(self, channels: int, squeezed: int, style: Style) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            style.squeeze(),
            nn.Conv2d(squeezed, channels, 1),
            style.scale(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.weigh(x) * x


class InvertedResidual(nn.Module):
    """1x1 to more channels, a depthwise convolution, excitation, 1x1 to fewer; all but the last activated."""

    def __init__(self, block: Block, activation: Activation, style: Style) -> None:
        super().__init__()
        b, eps = block, style.eps
        layers: list[nn.Module] = []
        if b.expanded != b.channels:
            layers.append(_conv(b.channels, b.expanded, 1, 1, 1, eps, activation))
        layers.append(_conv(b.expanded, b.expanded, b.kernel, b.stride, b.expanded, eps, activation))
        if b.squeezed is not None:
            layers.append(SqueezeExcitation(b.expanded, b.squeezed, style))
        layers.append(_conv(b.expanded, b.outs, 1, 1, 1, eps, None))
        self.body = nn.Sequential(*layers)
        self.is_added = b.stride == 1 and b.channels == b.outs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.is_added else self.body(x)


def mobilenet_v3_large(n_classes: int = 1000) -> nn.Module:
    """Fifteen inverted residuals of 16 to 160 channels, with ReLU and Hardswish; 5.5 million weights."""
    layers: list[nn.Module] = [_conv(3, 16, 3, 2, 1, _V3.eps, nn.Hardswish)]
    for channels, kernel, expanded, outs, squeezed, is_swish, stride in _LARGE:
        block = Block(channels, expanded, outs, kernel, stride, squeezed)
        layers.append(InvertedResidual(block, nn.Hardswish if is_swish else nn.ReLU, _V3))
    layers.append(_conv(160, 960, 1, 1, 1, _V3.eps, nn.Hardswish))
    head = [nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, n_classes)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)


def efficientnet_b0(n_classes: int = 1000) -> nn.Module:
    """Sixteen inverted residuals of 16 to 320 channels, with SiLU; 5.3 million weights."""
    layers: list[nn.Module] = [_conv(3, 32, 3, 2, 1, _EFFICIENT.eps, nn.SiLU)]
    for expansion, kernel, stride, first, outs, depth in _B0:
        for i in range(depth):
            channels = outs if i else first
            squeezed = max(1, channels // 4)
            block = Block(channels, expansion * channels, outs, kernel, 1 if i else stride, squeezed)
            layers.append(InvertedResidual(block, nn.SiLU, _EFFICIENT))
    layers.append(_conv(320, 1280, 1, 1, 1, _EFFICIENT.eps, nn.SiLU))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, n_classes))


def _conv(
    channels: int, outs: int, kernel: int, stride: int, groups: int, eps: float, activation: Activation | None
) -> nn.Sequential:
    conv = nn.Conv2d(channels, outs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outs, eps=eps), *([activation()] if activation else []))
