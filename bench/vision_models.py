"""Image models as torch modules with random weights and a fixed seed, exported to ONNX; VGG-16, ResNet-50
and ResNeXt-50 32x4d.

Written here so that torchvision need not be installed; the architectures are torchvision's (VGG configuration
D; ResNet v1.5, with the stride in the 3x3 convolution). Other models are in separate modules.
"""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from vision_inverted import efficientnet_b0, mobilenet_v3_large
from vision_transformers import convnext_tiny, vit_b_16

_VGG16 = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")


def vgg16(n_classes: int = 1000) -> nn.Module:
    """Thirteen 3x3 convolutions, five poolings, three linear layers; 138 million weights."""
    layers: list[nn.Module] = []
    channels = 3
    for item in _VGG16:
        if isinstance(item, str):
            layers.append(nn.MaxPool2d(2, 2))
        else:
            layers += [nn.Conv2d(channels, item, 3, padding=1), nn.ReLU()]
            channels = item
    head = [
        nn.Linear(512 * 49, 4096),
        nn.ReLU(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, n_classes),
    ]
    return nn.Sequential(*layers, nn.Flatten(), *head)


class Bottleneck(nn.Module):
    """1x1, 3x3 in groups, 1x1, each with batch norm, and a skip connection."""

    def __init__(self, channels: int, width: int, outs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(channels, width, 1, 1),
            nn.ReLU(),
            _conv(width, width, 3, stride, groups),
            nn.ReLU(),
            _conv(width, outs, 1, 1),
        )
        self.skip = nn.Identity() if (channels, stride) == (outs, 1) else _conv(channels, outs, 1, stride)
        self.end = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.body(x) + self.skip(x))


def resnet50(n_classes: int = 1000) -> nn.Module:
    """26 million weights."""
    return _bottlenecks(n_classes, widened=1, groups=1)


def resnext50(n_classes: int = 1000) -> nn.Module:
    """32 groups of 4 channels and more; 25 million weights."""
    return _bottlenecks(n_classes, widened=2, groups=32)


def _bottlenecks(n_classes: int, widened: int, groups: int) -> nn.Module:
    """Four stages of 3, 4, 6 and 3 bottlenecks, `widened` times as wide in their middle."""
    layers: list[nn.Module] = [_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(depth):
            stride = 2 if i == 0 and width > 64 else 1
            layers.append(Bottleneck(channels, widened * width, 4 * width, stride, groups))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, n_classes))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "vgg16": vgg16,
    "resnet50": resnet50,
    "resnext50_32x4d": resnext50,
    "mobilenet_v3_large": mobilenet_v3_large,
    "efficientnet_b0": efficientnet_b0,
    "convnext_tiny": convnext_tiny,
    "vit_b_16": vit_b_16,
}


def build(name: str) -> nn.Module:
    """Model `name` in evaluation mode, its weights random by a fixed seed."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # as after training: means not 0, variances not 1
            nn.init.normal_(module.running_mean, 0.0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.2, 0.6)
    return model


def export(name: str, path: Path, batch: int = 1) -> Path:
    """Write model `name` to `path`, input `x` [batch, 3, 224, 224], output `y`; an existing file is kept."""
    if path.exists():
        return path
    model = build(name)
    x = torch.randn(batch, 3, 224, 224)
    partial = path.with_suffix(".partial")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (x,),
            str(partial),
            input_names=["x"],
            output_names=["y"],
            opset_version=17,
            dynamo=False,
            do_constant_folding=False,  # keep batch norms: folding them is the runtime's task
        )
    partial.rename(path)
    return path


def _conv(channels: int, outs: int, kernel: int, stride: int, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(channels, outs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outs))
