"""ConvNeXt-Tiny and ViT-B/16 as torch modules, torchvision's architectures layer for layer."""

import torch
from torch import Tensor, nn

_EPS = 1e-6
_WIDTH, _HEADS, _LAYERS, _PATCH = 768, 12, 12, 16


class Permute(nn.Module):
    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.order)


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of a channels-first image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A depthwise 7x7 convolution, then two linear layers on each pixel; scaled, and added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 7, padding=3, groups=channels),
            Permute(0, 2, 3, 1),
            nn.LayerNorm(channels, eps=_EPS),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
            Permute(0, 3, 1, 2),
        )
        self.layer_scale = nn.Parameter(torch.rand(channels, 1, 1))  # as after training: far from 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.layer_scale * self.body(x) + x


def convnext_tiny(n_classes: int = 1000) -> nn.Module:
    """Stages of 3, 3, 9 and 3 blocks of 96 to 768 channels; 29 million weights."""
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), LayerNorm2d(96, eps=_EPS)]
    for channels, depth, is_last in ((96, 3, False), (192, 3, False), (384, 9, False), (768, 3, True)):
        layers += [ConvNeXtBlock(channels) for _ in range(depth)]
        if not is_last:
            layers += [LayerNorm2d(channels, eps=_EPS), nn.Conv2d(channels, 2 * channels, 2, 2)]
    head = [nn.AdaptiveAvgPool2d(1), LayerNorm2d(768, eps=_EPS), nn.Flatten(), nn.Linear(768, n_classes)]
    return nn.Sequential(*layers, *head)


class EncoderBlock(nn.Module):
    """Self-attention and an MLP, each after a norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(_WIDTH, eps=_EPS)
        self.self_attention = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)
        self.ln_2 = nn.LayerNorm(_WIDTH, eps=_EPS)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = self.self_attention(y, y, y, need_weights=False)[0] + x
        return x + self.mlp(self.ln_2(x))


class VisionTransformer(nn.Module):
    """Patches of 16 x 16 as tokens, a class token before them, twelve blocks, a linear head."""

    def __init__(self, n_classes: int, image: int = 224) -> None:
        super().__init__()
        n_tokens = (image // _PATCH) ** 2 + 1
        self.conv_proj = nn.Conv2d(3, _WIDTH, _PATCH, _PATCH)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, _WIDTH))
        self.pos_embedding = nn.Parameter(0.02 * torch.randn(1, n_tokens, _WIDTH))
        self.layers = nn.Sequential(*(EncoderBlock() for _ in range(_LAYERS)))
        self.ln = nn.LayerNorm(_WIDTH, eps=_EPS)
        self.head = nn.Linear(_WIDTH, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        x = self.conv_proj(x).reshape(n, _WIDTH, -1).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1)
        x = self.ln(self.layers(x + self.pos_embedding))
        return self.head(x[:, 0])


def vit_b_16(n_classes: int = 1000) -> nn.Module:
    """86 million weights."""
    return VisionTransformer(n_classes)
