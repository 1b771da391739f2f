"""The built-in studies train what their reports describe, and flag their deviations."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from favorit.config import RunConfig
from favorit.model import PRESETS, preset
from favorit.study import Options, load_study
from favorit.study.load import built_in

REPORTS = sorted(set(built_in()) - {"quickstart"})


def configs(name: str, **options: object) -> Mapping[str, RunConfig]:
    return load_study(name).configs(Options(**options))  # type: ignore[arg-type]


def of_preset(study: str, name: str, **options: object) -> list[RunConfig]:
    points = load_study(study)
    chosen = Options(**options)  # type: ignore[arg-type]
    return [points.config(point, chosen) for point in points.named(chosen) if point.changes.get("model.preset") == name]


def flags(study: str, pattern: str) -> str:
    found = load_study(study)
    return " ".join(
        sentence for point in found.named(Options()) if pattern in point.name for sentence in found.flagged(point.name)
    )


# all reports


@pytest.mark.parametrize("name", REPORTS)
def test_published_protocol_watches_and_sound_protocol_does_not(name: str):
    assert {config.train.watch for config in configs(name).values()} == {"test"}
    assert {config.train.watch for config in configs(name, protocol="sound").values()} == {None}


@pytest.mark.parametrize("name", REPORTS)
def test_docstring_names_the_report_and_its_small_scale(name: str):
    module = __import__(f"favorit.studies.{name.replace('-', '_')}", fromlist=["STUDY"])
    title = module.__doc__.splitlines()[0]
    assert '"' in title, "the report's title"
    assert "`small`" in module.__doc__
    assert "Section" not in title


# ViT variants


def test_vit_of_table_1_is_a_point():
    (mnist, cifar10) = of_preset("vit-variants", "vit")
    assert {mnist.data.name, cifar10.data.name} == {"mnist", "cifar10"}
    assert (cifar10.model.dim, cifar10.model.depth, cifar10.model.heads, cifar10.model.head_dim) == (96, 4, 6, 64)


def test_local_and_global_mixing_is_a_point():
    assert {config.model.local for config in of_preset("vit-variants", "performer-relu-local")} == {"dwconv(3)"}


def test_unstated_weight_decay_is_the_default_of_pytorch():
    for config in configs("vit-variants").values():
        assert config.train.weight_decay == {"adamw": 0.01, "adam": 0.0}[config.train.optimizer]


def test_deviations_of_vit_variants_are_flagged():
    assert "omit |x|^2/2" in flags("vit-variants", "preset=performer-exp")
    assert "softplus" in flags("vit-variants", "preset=performer-ftheta")
    assert "1e-6 to the denominator" in flags("vit-variants", "preset=performer-relu")


# kernels


def test_vit_of_kernels_is_post_norm_with_relu():
    config = preset("kernel-vit")
    assert (config.norm, config.act) == ("post", "relu")


def test_relu_has_256_features_with_random_bias():
    assert PRESETS["conv-relu"]["performer"].startswith("relu(m=256, bias=True")


@pytest.mark.parametrize("kernel", ["relu", "elu", "gelu", "exp"])
def test_projections_are_drawn_like_torch_orthogonal(kernel: str):
    assert "rows=orthonormal" in PRESETS[f"conv-{kernel}"]["performer"]


def test_mixture_builds_on_the_prior_relu_run():
    (one, *_) = of_preset("kernels", "conv-mixture")
    assert (one.model.depth, one.train.lr, one.train.optimizer, one.model.dropout) == (1, 5e-4, "adam", 0.0)
    assert one.model.performer == "mixture(eps=1e-6)"


def test_gradients_are_clipped_for_gelu_and_ftheta_only():
    for point, config in configs("kernels").items():
        first_gelu = config.train.lr == 5e-4 and "gelu" in point  # the tuning round that ended in NaN had no clipping
        expected = ("gelu" in point and not first_gelu) or "learned" in point
        assert (config.train.clip is not None) == expected, point


def test_weight_decay_is_zero_unless_stated():
    for point, config in configs("kernels").items():
        stated = {"adamw": 0.01}.get(config.train.optimizer, 1e-4 if "conv-learned" in point else 0.0)
        assert config.train.weight_decay in (stated, *([1e-4] if "conv-exp" in point else [])), point


def test_every_point_of_kernels_has_all_five_folds():
    folds: dict[str, set[int | None]] = {}
    for point in load_study("kernels").named(Options()):
        folds.setdefault(point.group, set()).add(point.changes.get("data.fold"))
    whole = [own for group, own in folds.items() if "cifar100" not in group]
    assert whole
    assert all(own == {0, 1, 2, 3, 4} for own in whole)


def test_proposals_of_the_kernels_report_are_points():
    found = configs("kernels").values()
    assert any(config.train.class_weights == (1, 1, 1, 1.5, 1, 1.5, 1, 1, 1, 1) for config in found)
    assert any("classes=(3, 5)" in (config.data.augment or "") for config in found)
    performers = {config.model.performer for config in found}
    for part in (
        "clamp=5.0",
        "clamp=20.0",
        "temperature=True",
        "sincos",
        "elu(m=256, alpha=0.25, raw=True",
        "mixture(raw=True, eps=1e-6)",
    ):
        assert any(part in performer for performer in performers), part


def test_deviations_of_kernels_are_flagged():
    for kernel, text in [
        ("elu", "shifted"),
        ("gelu", "multiplied"),
        ("learned", "softplus"),
        ("mixture", "sigmoid"),
        ("exp", "tuned on"),
    ]:
        assert text in flags("kernels", f"conv-{kernel}"), kernel


# hybrids


@pytest.mark.parametrize("name", ["hybrids", "positions"])
def test_control_without_mixing_has_both_heads_and_is_flagged(name: str):
    """Without mixing, a class token never sees the image: this control is at chance by construction."""
    for scale in ("published", "small"):
        heads = {config.model.head for config in configs(name, scale=scale).values() if config.model.layout == "none"}
        assert heads == {"cls", "mean"}
    assert "chance by construction" in flags(name, "layout=none")


def test_hybrids_include_8_features_and_time_inference_at_batch_128():
    found = configs("hybrids")
    for data in ("mnist", "cifar10"):
        assert any(config.data.name == data and config.model.performer == "relu(m=8)" for config in found.values())
    assert {config.train.test_batch_size for config in found.values()} == {128}


def test_contradictions_of_the_hybrids_report_are_flagged():
    text = flags("hybrids", "layout=all_standard")
    for part in ("augmented test images", "best test epoch", "naive softmax", "equation 4"):
        assert part in text
    assert "norm sqrt(D)" in flags("hybrids", "relu(m=64)")
    assert "norm sqrt(D)" not in flags("hybrids", "favor(m=64)")


# linear attention


def test_only_the_performer_has_weight_decay():
    for point, config in configs("linear-attention").items():
        assert config.train.weight_decay == (1e-4 if "linear-performer" in point else 0.0), point
        assert config.train.optimizer == ("adamw" if "linear-performer" in point else "adam"), point


def test_performers_normalize_by_the_statistics_of_the_data():
    for point, config in configs("linear-attention").items():
        assert (config.data.preprocess is None) == ("linear-performer" in point), point


def test_linear_attention_has_cifar100_and_a_resnet_stem():
    found = configs("linear-attention")
    assert sum(config.data.name == "cifar100" for config in found.values()) == 3
    assert [config.model.stem for config in of_preset("linear-attention", "linear-performer-resnet")] == ["resnet"]


def test_guesses_of_linear_attention_are_flagged():
    assert "a guess" in flags("linear-attention", "performer=exp")
    assert "local windows" in flags("linear-attention", "preset=linformer")
    assert "second recipe" in (load_module("linear_attention").__doc__ or "")


def load_module(name: str) -> object:
    return __import__(f"favorit.studies.{name}", fromlist=["STUDY"])


# positions


def test_guesses_of_positions_are_flagged():
    assert "a guess" in flags("positions", "string")
    assert "--tensorboard" in (load_module("positions").__doc__ or "")
