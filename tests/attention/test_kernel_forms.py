"""Attention with each option of a kernel equals the kernel's formula, in outputs and gradients, for short and for
blocked inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from checks import directions, follows_formula
from favorit import FavoritError
from favorit.attention import KERNELS, build_mixer
from favorit.attention.cpu.block_features import cpu_kernel
from favorit.attention.cpu.limits import Limits
from favorit.attention.kernels.contract import Kernel
from favorit.attention.kernels.random_features import orthogonal_rows
from favorit.seeds import generator
from favorit.selftest import cases
from favorit.selftest.inputs import HEADS, assert_close, builder

D = 6
CASES = [(name, case) for table in (cases.MIXERS, cases.RAW) for name, case in table.items()]
FORMULAS = {spec: formula for _, case in CASES for spec, formula in case.formulas.items()}
# Limits that force each implementation, by test id.
LIMITS = {"all at once": Limits(), "in blocks": Limits(one_thread=0, few_feature_elements=0, block_elements=64 * 9)}


def test_every_kernel_has_a_formula_for_one_of_its_variants() -> None:
    assert {name for name, case in CASES if case.formulas} == set(KERNELS)
    assert all(spec.partition("(")[0] == name for name, case in CASES for spec in case.formulas)


def test_kernel_without_keys_cannot_be_built() -> None:
    class Forgetful(Kernel):
        features = 1

        def queries(self, q: Tensor) -> Tensor:
            return q.exp()

    with pytest.raises(TypeError, match=r"abstract method .?keys"):
        Forgetful()  # type: ignore[abstract]


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("spec", FORMULAS)
def test_attention_equals_the_formula_of_its_kernel(spec: str, limits: str, causal: bool) -> None:
    follows_formula(builder(spec, LIMITS[limits]), FORMULAS[spec], causal)


def _drop_scale(kernel: Kernel) -> None:
    kernel.scale = 1.0  # type: ignore[assignment]


def _drop_bias(kernel: Kernel) -> None:
    kernel.projection.rows[:, -1] = 0  # type: ignore[union-attr, index]


def _half_the_decay(kernel: Kernel) -> None:
    kernel.decay = 0.5  # type: ignore[assignment]


def _softplus(kernel: Kernel) -> None:
    kernel.raw = False  # type: ignore[assignment]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ("relu(m=9, bias=True, scale=sqrt, eps=0.1)", _drop_scale),
        ("relu(m=9, bias=True, scale=sqrt, eps=0.1)", _drop_bias),
        ("favor(m=9, kernel=gaussian)", _half_the_decay),
        ("learned(raw=True, scale=sqrt)", _softplus),
        ("mixture(raw=True, eps=1e-6)", _softplus),
    ],
)
def test_wrong_kernel_differs_from_the_formula(spec: str, wrong: Callable[[Kernel], None], limits: str) -> None:
    with pytest.raises(AssertionError):
        follows_formula(builder(spec, LIMITS[limits]), FORMULAS[spec], wrong=wrong)


@pytest.mark.parametrize("spec", ["elu(raw=True)", "gelu(m=16, raw=True)", "learned(raw=True)", "sincos"])
def test_signed_features_have_no_floor(spec: str) -> None:
    kernel = KERNELS.build(spec, head_dim=8, layer=0, seed=0)
    assert kernel.queries(torch.randn(50, 8, generator=torch.Generator().manual_seed(0))).min() < 0
    assert cpu_kernel(kernel).floor(kernel) == 0


def test_raw_weights_blow_up_where_the_sum_of_a_row_crosses_zero() -> None:
    """This is documented and not prevented. Rows still sum to one, but the weights have both signs and grow as
    1 / sum.
    """
    mixer = build_mixer("elu(raw=True, scale=none, eps=1e-12)", heads=1, head_dim=1).double()
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    largest = []
    for gap in (1e-2, 1e-4, 1e-6):
        # phi(k) is 0.5 and -0.5 + gap
        k = torch.tensor([0.5, math.log(0.5 + gap)], dtype=torch.float64).view(1, 1, 2, 1)
        w = mixer.weights(q, k)
        assert_close(w.sum(-1), torch.ones(1, 1, 1, dtype=torch.float64), 1e-6)
        assert w.min() < 0
        largest.append(w.max().item() * gap)
    assert largest == pytest.approx([0.5] * 3, rel=1e-4)


def test_raw_features_that_all_vanish_give_the_mean_of_values() -> None:
    mixer = build_mixer("learned(raw=True, bias=False)", heads=1, head_dim=4)
    v = torch.randn(1, 1, 5, 4)
    zero = torch.zeros(1, 1, 5, 4)
    assert_close(mixer(zero, zero, v), v.mean(-2, keepdim=True).expand_as(v), 1e-6)


def test_mixture_starts_at_the_same_values_with_and_without_raw() -> None:
    for spec in ("mixture(eps=1e-6)", "mixture(raw=True, eps=1e-6)"):
        found = KERNELS.build(spec, head_dim=8, layer=0, seed=0).scalars()
        assert found == pytest.approx({"a": 0.5, "t": 1.0, "eps": 1e-6}, rel=1e-5)
    assert KERNELS.build("mixture", head_dim=8, layer=0, seed=0).scalars()["eps"] == pytest.approx(1e-3, rel=1e-5)


def test_temperature_starts_at_one_and_is_logged() -> None:
    kernel, plain = (
        KERNELS.build(f"exp(m=8{more})", head_dim=8, layer=0, seed=0) for more in (", temperature=True", "")
    )
    x = torch.randn(5, 8)
    assert kernel.scalars() == {"t": 1.0}
    assert plain.scalars() == {}
    assert torch.equal(kernel.queries(x), plain.queries(x))


@pytest.mark.parametrize(("m", "dim"), [(24, 6), (6, 6), (4, 6)])
def test_orthonormal_rows_have_the_gram_matrix_and_norm_of_torch(m: int, dim: int) -> None:
    rows = orthogonal_rows(m, dim, generator(0, "test"), "orthonormal")
    gram = rows.mT @ rows if m >= dim else rows @ rows.mT
    assert rows.shape == (m, dim)
    assert_close(gram, torch.eye(min(m, dim), dtype=torch.float64), 1e-12)
    theirs = torch.nn.init.orthogonal_(torch.empty(m, dim, dtype=torch.float64))
    assert rows.square().sum() == pytest.approx(theirs.square().sum().item())
    # No direction is favored: the entries have mean zero, which needs the signs of QR.
    many = torch.stack([orthogonal_rows(m, dim, generator(seed, "test"), "orthonormal") for seed in range(2000)])
    assert many.mean(0).abs().max() < 4 * (max(m, dim) * 2000) ** -0.5


def test_bias_is_drawn_and_redrawn_with_the_rows() -> None:
    one, other = (KERNELS.build("relu(m=16, bias=True)", head_dim=8, layer=0, seed=0) for _ in range(2))
    (rows,) = one.buffers()
    assert rows.shape == (16, 9)
    assert torch.allclose(rows.norm(dim=-1), torch.tensor(3.0))
    assert rows[:, -1].abs().max() > 0.1
    before = rows.clone()
    one.redraw(3)
    assert not torch.equal(rows[:, -1], before[:, -1])
    other.redraw(3)
    assert torch.equal(rows, next(other.buffers()))


def test_default_rows_equal_those_of_earlier_versions() -> None:
    """New options must not change the rows that an old spec draws."""
    (rows,) = KERNELS.build("relu(m=3)", head_dim=2, layer=1, seed=5).buffers()
    expected = [[-0.9403287, -1.0563058], [-1.0563058, 0.9403287], [-1.3425585, 0.4444509]]
    assert_close(rows, torch.tensor(expected), 1e-6)


@pytest.mark.parametrize("option", ["learned=True", "bias=True", "rows=orthonormal"])
def test_row_option_without_m_is_rejected(option: str) -> None:
    with pytest.raises(FavoritError, match=f"{option} needs m, .* m=128, {option}"):
        build_mixer(f"elu({option})", heads=1, head_dim=4)


def test_sincos_with_odd_m_is_rejected() -> None:
    with pytest.raises(FavoritError, match=r"sincos: m=7 is not valid: .* even"):
        build_mixer("sincos(m=7)", heads=1, head_dim=4)


@pytest.mark.parametrize(("spec", "constant"), [("favor(m=4096, kernel=gaussian)", 0.0), ("sincos(m=4096)", 1.0)])
def test_weights_approach_those_of_the_gaussian_kernel(spec: str, constant: float) -> None:
    """Keys have different norms, for which the weights of the softmax kernel differ from those of the Gaussian one."""
    k = (torch.cat([directions(D), 1.6 * directions(D), 0.3 * directions(D)]) * D**0.25)[None, None].expand(
        1, HEADS, -1, -1
    )
    q = 0.5 * k[:, :, :3]
    exact = constant + torch.exp(-torch.cdist(q, k).square() / (2 * D**0.5))
    exact = exact / exact.sum(-1, keepdim=True)
    draws = [builder(spec)(head_dim=D, tokens=15, seed=seed).double().weights(q, k) for seed in range(20)]
    error = (torch.stack(draws).mean(0) - exact).abs().max() / exact.max()
    softmax = (builder("favor(m=4096)")(head_dim=D, tokens=15).double().weights(q, k) - exact).abs().max() / exact.max()
    assert error < 0.03
    assert softmax > 0.2
