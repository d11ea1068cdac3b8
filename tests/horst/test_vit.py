"""Vision models: published sizes, and torchvision's ViT with the same weights."""

import pytest
import torch
from torchvision.models.vision_transformer import VisionTransformer

from unrolled.horst.sparsity import prunable_weights
from unrolled.horst.vit import DEIT_BASE, DEIT_SMALL, DEIT_TINY, SmallCNN, ViT, ViTConfig
from unrolled.transformer import count_parameters


@pytest.mark.equation("eq-horst-vit-count")
@pytest.mark.parametrize(
    ("config", "parameters"),
    [(DEIT_TINY, 5_717_416), (DEIT_SMALL, 22_050_664), (DEIT_BASE, 86_567_656)],
    ids=["tiny", "small", "base"],
)
def test_deit_has_the_published_number_of_parameters(config, parameters):
    with torch.device("meta"):
        assert count_parameters(ViT(config)) == parameters
    d, n, pixels = config.hidden_size, config.num_patches, 3 * 16**2
    formula = (pixels + 1) * d + (n + 2) * d + 12 * (12 * d**2 + 13 * d) + 2 * d + (d + 1) * 1_000
    assert formula == parameters


@pytest.mark.equation("eq-horst-vit")
def test_it_computes_what_torchvision_does_with_the_same_weights():
    torch.manual_seed(0)
    config = ViTConfig(image_size=12, patch_size=4, num_channels=3, num_layers=2, hidden_size=16)
    ours = ViT(config).eval()
    theirs = VisionTransformer(
        image_size=12, patch_size=4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=64,
        num_classes=10, norm_layer=torch.nn.LayerNorm,
    ).eval()  # fmt: skip
    for parameter in ours.parameters():  # so that biases and gains matter
        parameter.data.normal_(std=0.3)
    theirs.load_state_dict(as_torchvision(ours))
    images = torch.randn(5, 3, 12, 12)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-4)


def as_torchvision(model):
    state = model.state_dict()
    found = {
        "class_token": state["class_token"],
        "encoder.pos_embedding": state["positions"],
        **{f"conv_proj.{n}": state[f"patches.{n}"] for n in ("weight", "bias")},
        **{f"encoder.ln.{n}": state[f"norm.{n}"] for n in ("weight", "bias")},
        **{f"heads.head.{n}": state[f"head.{n}"] for n in ("weight", "bias")},
    }
    names = {
        "ln_1": "attention_norm", "ln_2": "mlp_norm", "mlp.0": "mlp.hidden", "mlp.3": "mlp.output",
        "self_attention.out_proj": "attention.output",
    }  # fmt: skip
    for i in range(len(model.blocks)):
        theirs, ours = f"encoder.layers.encoder_layer_{i}", f"blocks.{i}"
        for n in ("weight", "bias"):
            parts = [state[f"{ours}.attention.{part}.{n}"] for part in ("query", "key", "value")]
            found[f"{theirs}.self_attention.in_proj_{n}"] = torch.cat(parts)
            found |= {f"{theirs}.{a}.{n}": state[f"{ours}.{b}.{n}"] for a, b in names.items()}
    return found


def test_the_class_token_sees_every_patch():
    torch.manual_seed(0)
    model = ViT(ViTConfig(num_layers=1)).eval()
    images = torch.randn(1, 1, 28, 28, requires_grad=True)
    model(images)[0, 0].backward()
    assert (images.grad.abs().amax(dim=(0, 1)) > 0).all()


def test_all_matrices_are_prunable_and_nothing_else():
    model = ViT(ViTConfig())
    weights = prunable_weights(model)
    assert len(weights) == 2 + 6 * model.config.num_layers
    assert all(name.endswith("weight") for name in weights)
    assert {weight.ndim for weight in prunable_weights(SmallCNN()).values()} == {2, 4}


def test_bad_shapes_are_named():
    with pytest.raises(ValueError, match="patch_size must be a divisor of image_size = 28, got 5"):
        ViTConfig(patch_size=5)
    with pytest.raises(ValueError, match="num_heads must be a divisor of hidden_size = 64"):
        ViTConfig(num_heads=3)
    with pytest.raises(ValueError, match="width"):
        SmallCNN(width=0)
