"""Presets: they have the published sizes of the five reproduced reports, and every preset builds."""

from __future__ import annotations

import contextlib

import pytest
import torch

from cases_model import LAYOUTS
from checks_model import randn
from favorit import FavoritError, create_model, list_components
from favorit.measure import parameters
from favorit.model import PRESETS, preset
from favorit.model.presets import RENAMED

SINGLE_TOKEN = [name for name, fields in PRESETS.items() if "tokens=1" in fields.get("stem", "")]


@pytest.mark.parametrize(
    ("name", "overrides", "count"),
    [
        ("simple-vit", {}, 2_374_026),
        ("vit", dict(head="mean", position="none"), 993_258),
        ("vit", {}, 993_258 + 96 + 65 * 96),
        ("vit-64", {}, 142_026),
        ("linear-performer-summary", {}, 5_545_482),
    ],
)
def test_preset_has_the_published_number_of_parameters(name, overrides, count):
    assert parameters(create_model(name, seed=0, **overrides)) == count


@pytest.mark.parametrize("kernel", ["relu", "relu(m={m})", "favor(m={m})", "favor(m={m}, features=hyperbolic)"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_vit_64_has_one_size_for_every_layout_and_number_of_features(layout, kernel):
    for m in (16, 128, 512) if "{m}" in kernel else (0,):
        assert parameters(create_model("vit-64", seed=0, layout=layout, performer=kernel.format(m=m))) == 142_026


def test_linear_performer_summary_has_25_tokens_and_head_widths_2048_and_1024():
    model = create_model("linear-performer-summary", seed=0)
    assert model.features(torch.zeros(1, 3, 32, 32)).shape == (1, 25, 64)
    assert [tuple(p.shape) for p in model.head.parameters() if p.ndim == 2] == [
        (2048, 25 * 64),
        (1024, 2048),
        (10, 1024),
    ]


@pytest.mark.parametrize("name", PRESETS)
def test_preset_builds_and_gives_finite_logits(name):
    config = preset(name)
    narrow = dict(dim=64) if name.startswith("conv-") else {}  # at full width they have up to 63 million weights
    warning = pytest.warns(UserWarning, match="single token") if name in SINGLE_TOKEN else contextlib.nullcontext()
    with warning:
        model = create_model(name, seed=0, **narrow).eval()
    with torch.no_grad():
        logits = model(randn(1, config.channels, *config.image_size, dtype=torch.float32))
    assert logits.shape == (1, config.classes)
    assert logits.isfinite().all()


def test_presets_cover_all_five_reports():
    assert {"vit", "simple-vit", "vit-64", "vit-192-imagenet"} <= set(list_components("presets"))
    assert len(SINGLE_TOKEN) == 6
    relative = {
        f"position-{mixer}-{position}"
        for mixer in ("softmax", "favor", "relu")
        for position in ("none", "rope2d", "irpe", "string")
    }
    assert relative <= set(PRESETS)
    assert all(f"{name}-grid" in PRESETS for name in SINGLE_TOKEN), "the same backbone with its grid kept as tokens"


def test_imagenet_preset_has_the_published_sizes():
    config = preset("vit-192-imagenet")
    assert (config.image_size, config.classes, config.dim, config.depth, config.heads, config.mlp_dim) == (
        (224, 224),
        1000,
        192,
        8,
        3,
        768,
    )
    assert create_model(config, seed=0).stem.grid((224, 224)) == (28, 28)


def test_unknown_preset_is_named_with_the_nearest_match():
    with pytest.raises(FavoritError, match=r"unknown preset 'vti-64': did you mean 'vit-64'\? known: .*simple-vit"):
        create_model("vti-64")


@pytest.mark.parametrize(("former", "current"), RENAMED.items())
def test_former_preset_name_works_with_a_warning(former: str, current: str):
    with pytest.warns(UserWarning, match=f"^preset '{former}' is now '{current}': all its layers are softmax"):
        assert preset(former) == preset(current)
    assert former not in PRESETS
