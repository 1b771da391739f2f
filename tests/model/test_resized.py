"""Change of resolution: parameters that depend on the token grid are interpolated."""

from __future__ import annotations

import pytest
import torch

from checks_model import randn, same_state, scatter
from favorit import FavoritError, ModelConfig, ViT, create_model

SMALL = ModelConfig(image_size=(16, 12), stem="patch(2)", dim=16, depth=2, heads=2, mlp_dim=16, classes=3)
SIZES = [(24, 24), (8, 20), (4, 2)]


def build(**overrides) -> ViT:
    return scatter(create_model(SMALL, seed=0, **overrides)).double().eval()


def images(size: tuple[int, int]) -> torch.Tensor:
    return randn(2, 3, *size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("position", ["learned", "none", "sincos2d+rope2d", "learned+irpe_gate", "string_gate"])
@pytest.mark.parametrize(
    "overrides", [dict(), dict(layout="favor(m=8)|relu", head="seqpool", local="dwconv(3)")], ids=["cls", "seqpool"]
)
def test_resized_model_equals_interpolation_in_the_forward_pass(position, overrides, size):
    model = build(position=position, **overrides)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    resized = model.resized(size)
    torch.testing.assert_close(resized(images(size)), model(images(size)), rtol=1e-12, atol=1e-12)
    assert resized.config == model.config.replace(image_size=size)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items()), (
        "the original model is unchanged"
    )
    fresh = create_model(resized.config, seed=1).double()
    assert {key: value.shape for key, value in fresh.state_dict().items()} == {
        k: v.shape for k, v in resized.state_dict().items()
    }


@pytest.mark.parametrize("head", ["cls", "mean"])
def test_resized_to_its_own_size_is_the_same_model(head):
    model = build(position="learned+irpe_gate", layout="linformer(k=4)", head=head)
    assert same_state(model, model.resized((16, 12)))


@pytest.mark.parametrize("share", ["none", "kv", "heads"])
@pytest.mark.parametrize("head", ["cls", "mean"])
@pytest.mark.parametrize("size", SIZES)
def test_resized_linformer_projections_keep_their_sum_over_tokens(size, head, share):
    """At a larger size, a constant projection gives each token less weight, so the sum over tokens does not change."""
    model = build(layout=f"linformer(k=4, share={share})", head=head)
    for block in model.blocks:
        mixer = block.attention.branch.mixer
        mixer.key_projection.data.fill_(0.25)
        if mixer.value_projection is not None:
            mixer.value_projection.data.fill_(-0.5)
    resized = model.resized(size)
    tokens = size[0] // 2 * size[1] // 2
    for old, new in zip(model.blocks, resized.blocks, strict=True):
        for (name, before), (_, after) in zip(
            old.attention.branch.mixer.named_parameters(), new.attention.branch.mixer.named_parameters(), strict=True
        ):
            assert after.shape[-1] == tokens, name
            assert after.std(-1).max() < 1e-12
            torch.testing.assert_close(after.sum(-1), before.sum(-1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_linformer_with_constant_projections_gives_equal_logits_at_every_size_for_a_constant_image(size):
    model = build(layout="linformer(k=4)", position="none", head="mean")
    for block in model.blocks:
        for projection in block.attention.branch.mixer.parameters():
            projection.data.fill_(1 / 48)
    flat = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    expected = model(flat.expand(1, 3, 16, 12))
    torch.testing.assert_close(model.resized(size)(flat.expand(1, 3, *size)), expected, rtol=1e-12, atol=1e-12)


def test_linformer_at_another_size_without_resized_is_rejected():
    model = build(layout="linformer(k=4)")
    with pytest.raises(FavoritError, match=r"built for 49 tokens and got 145: use resized\(\)"):
        model(images((24, 24)))
    assert model.resized((24, 24))(images((24, 24))).isfinite().all()


def test_resized_model_trains():
    model = build(layout="linformer(k=4)", position="learned+irpe_gate").resized((8, 20)).train()
    model(images((8, 20))).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in model.parameters())


@pytest.mark.parametrize("size", [5, (16, 13), (0, 2), "large"])
def test_invalid_size_is_rejected(size):
    with pytest.raises(FavoritError):
        build().resized(size)


def test_resized_with_a_head_or_stem_of_fixed_size_is_rejected():
    with pytest.raises(FavoritError, match=r"got 144 tokens and was built for 48.*image_size"):
        build(head="mlp(5)").resized((24, 24))(images((24, 24)))
    with pytest.warns(UserWarning, match="single token"):
        single = build(stem="conv(channels=(4,), tokens=1)", head="mean")
    for call in (lambda: single.resized((24, 24)), lambda: single(images((24, 24)))):
        with pytest.raises(FavoritError, match=r"tokens=1.*\(24, 24\).*image_size"):
            call()
