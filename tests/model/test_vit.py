"""The whole model: seeds, state dicts, batches, training mode, redraws, and invalid configurations.

Shapes: B batch, N tokens, C model width.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from checks_model import assert_equal_gradients, randn, same_state, scatter, unreached
from favorit import Attention, FavoritError, ModelConfig, ViT, create_model
from favorit.model import HEADS
from favorit.model.block import WIRINGS

SMALL = ModelConfig(image_size=(8, 12), stem="patch(4)", dim=16, depth=2, heads=2, mlp_dim=24, classes=5)

# Models that together cover all kinds of mixers, positions, stems, heads and options.
VARIANTS = {
    "plain": {},
    "mixed": dict(layout="favor(m=8)|relu(m=8)", position="learned+rope2d", head="mean"),
    "learned": dict(layout="learned|mixture", position="sincos2d+irpe_gate", head="seqpool", norm="post"),
    "linformer": dict(layout="linformer(k=4)", position="learned+string_gate"),
    "controls": dict(layout="uniform|none", head="mlp(9)", norm="double", mlp_dim=0),
    # No class token here: the last layer computes only that token, and its local convolution, which changes only
    # patches, would get no gradient.
    "extras": dict(
        head="mean", qk_norm=True, local="dwconv(3)", qkv_bias=False, out_bias=False, norm="double_inner", head_dim=12
    ),
    "conv": dict(stem="conv(channels=(4, 6))", layout="elu|gelu(m=8)", act="silu"),
    "resnet": dict(stem="resnet(channels=(4,))", layout="exp(m=8)|softmax"),
}


def build(seed: int | None = 0, **overrides) -> ViT:
    return create_model(SMALL, seed=seed, **overrides)


def images(batch: int = 3, seed: int = 0, size: tuple[int, int] = (8, 12)) -> torch.Tensor:
    return randn(batch, 3, *size, seed=seed, dtype=torch.float32)


every_variant = pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)


@every_variant
def test_same_seed_gives_the_same_model_and_another_seed_another(overrides):
    assert same_state(build(3, **overrides), build(3, **overrides))
    assert not same_state(build(3, **overrides), build(4, **overrides))


@every_variant
def test_without_a_seed_torch_manual_seed_decides(overrides):
    torch.manual_seed(7)
    first, second = build(None, **overrides), build(None, **overrides)
    torch.manual_seed(7)
    assert same_state(first, build(None, **overrides))
    assert not same_state(first, second)


@every_variant
def test_building_with_a_seed_does_not_advance_the_global_generator(overrides):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    build(0, **overrides)
    assert torch.equal(torch.rand(3), expected)


@every_variant
@pytest.mark.parametrize("head", list(HEADS))
@pytest.mark.parametrize("norm", WIRINGS)
def test_last_block_computes_only_the_tokens_that_the_head_reads(overrides, head, norm):
    model = scatter(build(**{**overrides, "head": head, "norm": norm}).double().eval())
    x = images().double().requires_grad_()
    seen = []
    model.blocks[-1].register_forward_hook(lambda block, inputs, out: seen.append(out.shape[1]))
    assert_equal_gradients(model, model(x), model.head(model.features(x)), x, rtol=1e-9, atol=1e-11)
    assert seen == [model.tokens if model.head.reads is None else model.head.reads, model.tokens]


@every_variant
def test_state_dict_round_trip_gives_equal_outputs(overrides):
    one, other = scatter(build(1, **overrides)), build(2, **overrides)
    one(images())  # running statistics of batch norm
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.eval()(images()), other.eval()(images()))


@every_variant
def test_images_of_a_batch_are_independent_in_evaluation(overrides):
    model, batch = scatter(build(**overrides)).double().eval(), images().double()
    torch.testing.assert_close(model(batch)[1:2], model(batch[1:2]), rtol=1e-10, atol=1e-10)


@every_variant
def test_gradients_reach_every_parameter_after_one_update(overrides):
    model, batch = build(**overrides).double(), images().double()
    assert unreached(model, lambda: model(batch), updates=1) == []


@every_variant
def test_logits_have_the_shape_of_the_classes_and_are_finite(overrides):
    for batch in (1, 4):
        logits = build(**overrides).eval()(images(batch))
        assert logits.shape == (batch, 5)
        assert logits.isfinite().all()


@pytest.mark.parametrize(("channels", "classes"), [(1, 1), (2, 100), (7, 2)])
def test_any_number_of_channels_and_classes_is_accepted(channels, classes):
    model = build(channels=channels, classes=classes)
    assert model(randn(2, channels, 8, 12, dtype=torch.float32)).shape == (2, classes)


@pytest.mark.parametrize("shape", [(1, 1, 32, 32), (3, 32, 32)])
def test_images_of_wrong_shape_are_rejected(shape):
    with pytest.raises(
        FavoritError,
        match=rf"images must be .* \(B, 3, H, W\), not torch.float32 \({', '.join(map(str, shape))}\)",
    ):
        create_model("vit-64")(torch.zeros(shape))


def test_features_are_the_class_token_and_the_patches():
    assert build().features(images()).shape == (3, 1 + 2 * 3, 16)
    assert build(head="mean").features(images()).shape == (3, 2 * 3, 16)


def test_model_is_the_composition_of_its_parts():
    model, x = scatter(build()), images()
    patches, grid = model.stem(x)
    tokens = torch.cat([model.class_token.expand(3, 1, 16), patches], 1) + model.position.parts[0].table
    for block in model.blocks:
        tokens = block(tokens, grid, 1)
    assert torch.equal(model.features(x), tokens)
    torch.testing.assert_close(model(x), model.head(tokens))


@pytest.mark.parametrize("rate", ["dropout", "emb_dropout", "drop_path"])
def test_dropout_acts_in_training_only(rate):
    model, plain = build(**{rate: 0.5}), build()
    assert same_state(model, plain)
    torch.manual_seed(0)
    assert not torch.equal(model(images()), model(images()))
    assert torch.equal(model.eval()(images()), plain(images()))


def test_emb_dropout_acts_before_the_blocks_and_dropout_inside():
    assert build(emb_dropout=0.3).dropout.p == 0.3
    assert {module.p for module in build(emb_dropout=0.3).blocks.modules() if isinstance(module, nn.Dropout)} == {0.0}
    assert {module.p for module in build(dropout=0.3).blocks.modules() if isinstance(module, nn.Dropout)} == {0.3}
    assert build(dropout=0.3).dropout.p == 0.0


def rows(model: ViT) -> list[torch.Tensor]:
    return [block.attention.branch.mixer.kernel.projection.rows.clone() for block in model.blocks]


@pytest.mark.parametrize(
    "layout", ["favor(m=8)", "favor(m=8, features=hyperbolic)", "favor(m=8, orthogonal=False)", "relu(m=8)"]
)
class TestRedraw:
    def test_changes_the_features_of_all_layers_in_training_only(self, layout):
        model = build(layout=layout)
        before = rows(model)
        model.eval().redraw(1)
        assert all(torch.equal(one, other) for one, other in zip(before, rows(model), strict=True))
        model.train().redraw(1)
        assert not any(torch.equal(one, other) for one, other in zip(before, rows(model), strict=True))

    def test_is_a_function_of_seed_layer_and_index(self, layout):
        model, same, other = build(layout=layout), build(layout=layout), build(1, layout=layout)
        start = rows(model)
        model.redraw(3)
        model.redraw(2)
        same.redraw(2)
        other.redraw(2)
        assert all(torch.equal(one, two) for one, two in zip(rows(model), rows(same), strict=True)), (
            "earlier draws do not matter"
        )
        assert not any(torch.equal(one, two) for one, two in zip(rows(model), rows(other), strict=True))
        assert not torch.equal(*rows(model)), "layers differ"
        model.redraw(0)
        assert all(torch.equal(one, two) for one, two in zip(rows(model), start, strict=True)), "draw 0 is the start"

    def test_features_are_part_of_the_state_dict(self, layout):
        model, other = build(layout=layout), build(1, layout=layout)
        model.redraw(5)
        other.load_state_dict(model.state_dict())
        assert torch.equal(model.eval()(images()), other.eval()(images()))


def test_learned_rows_are_not_redrawn():
    model, start = build(layout="relu(m=8, learned=True)"), build(layout="relu(m=8, learned=True)")
    model.redraw(1)
    assert same_state(model, start)


@pytest.mark.parametrize(
    "mixer", ["softmax(causal=True)", "favor(m=8, causal=True)", "relu(causal=True)", "uniform(causal=True)"]
)
def test_causal_with_a_class_token_is_rejected_and_without_one_has_no_lookahead(mixer):
    with pytest.raises(FavoritError, match=r"causal.*prefix=1.*head=mean"):
        build(layout=mixer)
    with pytest.raises(FavoritError, match=r"causal.*prefix=1.*head=mean"):
        build(layout=f"softmax|{mixer}")
    model, x = build(layout=mixer, head="mean").double(), images(1).double()
    changed = x.clone()
    changed[..., 4:, 4:8] += 1.0  # the patch of token 4
    difference = (model.features(changed) - model.features(x)).abs().amax((0, 2))
    assert (difference[:4] < 1e-12).all()
    assert (difference[4:] > 1e-6).all()


def test_qk_norm_removes_the_scale_of_queries_and_keys():
    model = build(qk_norm=True, qkv_bias=False).double()
    longer = build(qk_norm=True, qkv_bias=False).double()
    with torch.no_grad():
        for block in longer.blocks:
            block.attention.branch.qkv.weight[:32] *= 50.0
    x = images().double()
    torch.testing.assert_close(longer(x), model(x), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(build(qkv_bias=False).double()(x), model(x), rtol=1e-2)


def test_local_adds_a_depthwise_convolution_of_v_to_patches_of_a_non_square_grid():
    grid, dim, heads = (2, 5), 8, 2
    attention = scatter(Attention(dim, heads, "none", local="dwconv(3)", prefix=1, seed=0).double())
    x = randn(2, 11, dim)
    v = (x @ attention.qkv.weight.mT + attention.qkv.bias)[..., 2 * dim :]
    image = v[:, 1:].mT.reshape(2, dim, *grid)
    filtered = (
        F.conv2d(image, attention.local.filter.weight, attention.local.filter.bias, padding=1, groups=dim).flatten(2).mT
    )
    expected = attention.out(torch.cat([v[:, :1], v[:, 1:] + filtered], 1))
    torch.testing.assert_close(attention(x, grid, 1), expected, rtol=1e-12, atol=1e-12)


def test_local_is_in_every_layer_of_a_model_on_a_non_square_grid():
    model, plain = build(local="dwconv(3)"), build()
    extra = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in plain.parameters())
    assert extra == 2 * 16 * (3 * 3 + 1)
    assert model(images()).isfinite().all()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (dict(heads=3), ["heads=3", "dim=16", "head_dim"]),
        (dict(stem="patch(5)"), ["patch size (5, 5)", "(8, 12)", "crop=True"]),
        (dict(layout="linformer(causal=True)"), ["linformer", "causal=True"]),
        (dict(layout="favor(m=7, features=hyperbolic)"), ["favor", "m=7", "even"]),
        (dict(position="rope2d", head_dim=6), ["rope2d", "6", "divisible by 4"]),
        (dict(layout="favor(m=0)"), ["m=0", "at least 1"]),
        (dict(layout="softmax*3"), ["softmax*3", "depth=2", "multiple"]),
        (dict(layout="relu(learned=True)"), ["learned=True", "m=128"]),
        (dict(local="dwconv(2)"), ["dwconv", "size=2", "odd"]),
        (dict(local="conv"), ["local operation 'conv'", "'dwconv'"]),
        (dict(depht=2), ["unknown field", "'depht'", "'depth'"]),
    ],
    ids=lambda value: ",".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_invalid_configuration_is_named(overrides, words):
    with pytest.raises(FavoritError) as error:
        build(**overrides)
    message = str(error.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize("wrong", [None, 5, {"dim": 64}])
def test_create_model_rejects_other_types(wrong):
    with pytest.raises(FavoritError, match=f"preset or a ModelConfig, not {type(wrong).__name__}"):
        create_model(wrong)


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["softmax", "favor(m=8)", "relu", "learned|mixture", "linformer(k=4)"])
def test_half_precision_is_finite_in_values_and_gradients(layout, autocast):
    model = build(layout=layout, position="learned+irpe_gate+rope2d")
    with torch.autocast("cpu", autocast):
        logits = model(images())
    logits.float().square().sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
