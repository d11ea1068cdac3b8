r"""Vision models: a Transformer on patches of images, in the shape of DeiT, and a small CNN.

An image is cut into patches, each becomes a token, and a class token in front of them is read by
the head:

.. math:: x_0 = [\,x_{\mathrm{cls}};\; W_E\, p_1;\; \dots;\; W_E\, p_n\,] + E, \qquad
          \text{logits} = W_H\, \mathrm{norm}(x_L)_{\mathrm{cls}}

:eq:`eq-horst-vit`, with blocks of `unrolled.transformer.Block` between. `DEIT_TINY`, `DEIT_SMALL`
and `DEIT_BASE` have the published sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unrolled.optimization import require
from unrolled.transformer import Block, TransformerConfig, require_count

__all__ = ["DEIT_BASE", "DEIT_SMALL", "DEIT_TINY", "SmallCNN", "ViT", "ViTConfig"]

INIT_STD = 0.02  # truncated normal, as in DeiT


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Shape of a `ViT`, checked when it is made; :eq:`eq-horst-vit-count` counts its parameters.

    Parameters
    ----------
    image_size, patch_size : int
        Sides in pixels; the patch divides the image.
    num_channels, num_classes : int
        Of the images; of the head.
    num_layers, hidden_size, num_heads : int
        L, d and H; H divides d.

    Raises
    ------
    ValueError
        If a value is not allowed.

    Examples
    --------
    >>> ViTConfig(image_size=28, patch_size=4).num_patches
    49
    """

    image_size: int = 28
    patch_size: int = 4
    num_channels: int = 1
    num_classes: int = 10
    num_layers: int = 4
    hidden_size: int = 64
    num_heads: int = 2

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size", "num_channels", "num_classes"):
            require_count(getattr(self, name), name)
        divides = self.image_size % self.patch_size == 0
        allowed = f"a divisor of image_size = {self.image_size}"
        require(divides, "patch_size", self.patch_size, allowed)
        self.block  # noqa: B018 - checks the other values

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def block(self) -> TransformerConfig:
        """The blocks: pre-norm with LayerNorm, biases, GELU, and no causal mask."""
        return TransformerConfig(
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            max_length=self.num_patches + 1,
            causal=False,
            norm="layer",
            position="learned",
            qk_norm=False,
            activation="gelu",
            zero_output=False,
        )


_IMAGENET = {"image_size": 224, "patch_size": 16, "num_channels": 3, "num_classes": 1_000}
DEIT_TINY = ViTConfig(**_IMAGENET, num_layers=12, hidden_size=192, num_heads=3)
DEIT_SMALL = ViTConfig(**_IMAGENET, num_layers=12, hidden_size=384, num_heads=6)
DEIT_BASE = ViTConfig(**_IMAGENET, num_layers=12, hidden_size=768, num_heads=12)


class ViT(nn.Module):
    """A Transformer encoder on the patches of an image, with a class token: :eq:`eq-horst-vit`.

    Parameters
    ----------
    config : ViTConfig

    Examples
    --------
    >>> model = ViT(ViTConfig())
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])

    References
    ----------
    A. Dosovitskiy et al. (2021), "An Image is Worth 16x16 Words", ICLR; H. Touvron et al. (2021),
    "Training data-efficient image transformers & distillation through attention", ICML.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        d, side = config.hidden_size, config.patch_size
        self.config = config
        self.patches = nn.Conv2d(config.num_channels, d, kernel_size=side, stride=side)
        self.class_token = nn.Parameter(torch.zeros(1, 1, d))
        self.positions = nn.Parameter(torch.zeros(1, config.num_patches + 1, d))
        self.blocks = nn.ModuleList(Block(config.block) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, config.num_classes)
        self.apply(_initialise)
        for parameter in (self.class_token, self.positions):
            nn.init.trunc_normal_(parameter, std=INIT_STD)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, S, S) to logits (B, classes)."""
        x = self.patches(images).flatten(2).mT  # (B, n, d)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=INIT_STD)
        nn.init.zeros_(module.bias)


class SmallCNN(nn.Module):
    """Three convolutions with a norm and a ReLU each, the mean over the pixels, and a head.

    Parameters
    ----------
    num_channels, num_classes : int
        Of the images; of the head.
    width : int
        Channels of the first convolution; the others have twice and four times as many.

    Examples
    --------
    >>> SmallCNN(width=8)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, num_channels: int = 1, num_classes: int = 10, width: int = 32) -> None:
        super().__init__()
        require_count(width, "width")
        sizes = [num_channels, width, 2 * width, 4 * width]
        self.stages = nn.Sequential(
            *(_stage(sizes[i], sizes[i + 1], stride=1 if i == 0 else 2) for i in range(3))
        )
        self.head = nn.Linear(sizes[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, S, S) to logits (B, classes)."""
        return self.head(self.stages(images).mean(dim=(2, 3)))


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )
