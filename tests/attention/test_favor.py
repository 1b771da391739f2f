"""FAVOR+ estimates the softmax kernel without bias, with the error rate in m and the variance that theory gives."""

from __future__ import annotations

import math

import pytest
import torch

from checks import squared_errors, unbiased
from favorit.attention import build_mixer
from favorit.attention.kernels.random_features import orthogonal_rows
from favorit.seeds import generator
from favorit.selftest.inputs import assert_close, builder, tensors


@pytest.mark.parametrize("options", ["", ", features=hyperbolic", ", orthogonal=False"])
def test_estimates_are_unbiased(options: str) -> None:
    unbiased(builder(f"favor(m=1024{options})"))


@pytest.mark.parametrize("options", ["", ", features=hyperbolic", ", orthogonal=False"])
def test_error_falls_with_the_square_root_of_m(options: str) -> None:
    sizes = (16, 64, 256, 1024)
    errors = [
        squared_errors(builder(f"favor(m={m}{options})"), d=8, length=1.0, draws=300).mean().sqrt() for m in sizes
    ]
    logs = torch.tensor([[math.log(m), math.log(error)] for m, error in zip(sizes, errors, strict=True)])
    centered = logs - logs.mean(0)
    slope = (centered[:, 0] * centered[:, 1]).sum() / centered[:, 0].square().sum()
    assert -0.56 < slope < -0.44, f"error ~ m^{slope:.3f}: {errors}"


def test_variance_of_one_feature_equals_theory() -> None:
    """The relative variance of the estimate by one positive feature is exp(|z|^2) - 1."""
    error = squared_errors(builder("favor(m=64, orthogonal=False)"), d=8, length=0.7, draws=600).mean().item()
    assert error * 64 == pytest.approx(math.expm1(0.49), rel=0.06)


@pytest.mark.parametrize(("better", "worse"), [("", ", orthogonal=False"), (", features=hyperbolic", "")])
@pytest.mark.parametrize("length", [0.5, 1.0])
def test_better_option_has_less_variance(better: str, worse: str, length: float) -> None:
    low, high = (
        squared_errors(builder(f"favor(m=8{options})"), d=8, length=length, draws=1500) for options in (better, worse)
    )
    doubt = ((low.var() + high.var()) / 1500).sqrt()
    assert high.mean() - low.mean() > 4 * doubt, f"{low.mean():.4f} against {high.mean():.4f}, +- {doubt:.4f}"


def test_attention_approaches_softmax_as_m_grows() -> None:
    """At small norms, the output error falls with m and is below the error of uniform weights."""
    q, k, v = (x.detach() for x in tensors(65, 16))
    q, k = q / 4, k / 4
    exact = build_mixer("softmax", heads=2, head_dim=16)(q, k, v)
    average = (v.mean(-2, keepdim=True) - exact).norm()
    errors = []
    for m in (64, 256, 1024):
        outs = [build_mixer(f"favor(m={m})", heads=2, head_dim=16, seed=seed)(q, k, v) for seed in range(20)]
        errors.append(torch.stack([(out - exact).norm() for out in outs]).mean() / average)
    assert errors[1] < 0.6 * errors[0]
    assert errors[2] < 0.6 * errors[1]
    assert errors[2] < 0.3


def test_rows_are_orthogonal_in_blocks_with_the_lengths_of_normal_vectors() -> None:
    rows = orthogonal_rows(20, 8, generator(0, "test"))
    for block in (rows[:8], rows[8:16], rows[16:]):
        gram = block @ block.mT
        assert (gram - gram.diagonal().diag()).abs().max() < 1e-12
    many = torch.cat([orthogonal_rows(8, 8, generator(seed, "test")) for seed in range(2000)])
    assert many.square().sum(-1).mean() == pytest.approx(8, rel=0.02)
    assert many.square().sum(-1).var() == pytest.approx(16, rel=0.08)
    assert many.mean(0).abs().max() < 0.04
    assert torch.allclose(
        orthogonal_rows(20, 8, generator(0, "test"), "regular").norm(dim=-1), torch.tensor(8**0.5, dtype=torch.float64)
    )


def test_all_heads_of_a_layer_share_the_projection() -> None:
    """Equal heads give equal outputs."""
    q, k, v = (x[:, :1].expand(-1, 2, -1, -1) for x in tensors(17, 8))
    out = build_mixer("favor(m=16)", heads=2, head_dim=8)(q, k, v)
    assert_close(out[:, 0], out[:, 1], 1e-6)
