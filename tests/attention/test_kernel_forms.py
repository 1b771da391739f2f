"""Each optional form of a kernel against its formula: features, then attention on every path, in values and
gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from checks import directions
from favorit import FavoritError
from favorit.attention import KERNELS, Linear, build_mixer
from favorit.attention.cpu.block_features import cpu_kernel
from favorit.attention.cpu.limits import Limits
from favorit.attention.kernels.contract import Kernel
from favorit.attention.kernels.random_features import orthogonal_rows
from favorit.attention.mixer import UnprojectedTokens
from favorit.seeds import generator
from favorit.selftest.inputs import HEADS, assert_close, builder, gradients, tensors

# State of the kernel by name, x (..., D) -> features of a key
Formula = Callable[[Mapping[str, Tensor], Tensor], Tensor]
D = 6


def _affine(s: Mapping[str, Tensor], x: Tensor, scale: float) -> Tensor:
    """P x / D^scale + b, [P, b] the matrix of the kernel."""
    rows = s["learned_rows"] if "learned_rows" in s else s["projection.rows"]
    return x * D**-scale @ rows[:, :D].mT + rows[:, D]


def _mlp(s: Mapping[str, Tensor], x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
    return F.linear(act(F.linear(x, s["inner.weight"], s.get("inner.bias"))), s["outer.weight"], s.get("outer.bias"))


def _mixture(s: Mapping[str, Tensor], x: Tensor, a: Tensor, t: Tensor, eps: Tensor) -> Tensor:
    hidden = F.layer_norm(
        F.linear(x * D**-0.5, s["inner.weight"], s["inner.bias"]), (2 * D,), s["norm.weight"], s["norm.bias"]
    )
    z = F.linear(F.relu(hidden), s["outer.weight"], s["outer.bias"]) / t
    return a * z.clamp(-5, 5).exp() + (1 - a) * F.relu(z) + eps


def _sincos(s: Mapping[str, Tensor], x: Tensor) -> Tensor:
    u = x * D**-0.25 @ s["projection.rows"].mT
    return torch.cat([torch.ones_like(x[..., :1]), math.sqrt(2 / 8) * u.cos(), math.sqrt(2 / 8) * u.sin()], -1)


def _gaussian(s: Mapping[str, Tensor], x: Tensor) -> Tensor:
    x = x * D**-0.25
    return torch.exp(x @ s["projection.rows"].mT - x.square().sum(-1, keepdim=True))


FORMULAS: dict[str, Formula] = {
    "relu(m=9, bias=True, scale=sqrt, eps=0.1)": lambda s, x: F.relu(_affine(s, x, 0.5)) + 0.1,
    "relu(m=9, bias=True, learned=True)": lambda s, x: F.relu(_affine(s, x, 0.25)) + 1e-3,
    "relu(m=4, bias=True, rows=orthonormal, scale=none)": lambda s, x: F.relu(_affine(s, x, 0)) + 1e-3,
    "relu(m=9, bias=True, temperature=True)": lambda s, x: F.relu(_affine(s, x / s["log_t"].exp(), 0.25)) + 1e-3,
    "relu(temperature=True, eps=0.1)": lambda s, x: F.relu(x * D**-0.25 / s["log_t"].exp()) + 0.1,
    "elu(raw=True, alpha=0.5)": lambda s, x: F.elu(x * D**-0.25, 0.5) + 1e-3,
    "elu(m=9, bias=True, raw=True)": lambda s, x: F.elu(_affine(s, x, 0.25)) + 1e-3,
    "gelu(raw=True, scale=none, eps=1e-6)": lambda s, x: F.gelu(x) + 1e-6,
    "gelu(m=9, bias=True)": lambda s, x: F.gelu(_affine(s, x, 0.25)) + 0.16997120747990369 + 1e-3,
    "exp(m=9, bias=True, temperature=True, clamp=1.5)": lambda s, x: (
        _affine(s, x / s["log_t"].exp(), 0.25).clamp(-1.5, 1.5).exp() + 1e-3
    ),
    "learned(raw=True, scale=sqrt)": lambda s, x: _mlp(s, x * D**-0.5, F.relu),
    "learned(raw=True, bias=False, scale=none, act=gelu, m=9)": lambda s, x: _mlp(s, x, F.gelu),
    "learned(bias=False)": lambda s, x: F.softplus(_mlp(s, x * D**-0.25, F.relu)),
    "mixture(raw=True, eps=1e-6)": lambda s, x: _mixture(s, x, s["raw_a"], s["raw_t"], s["raw_eps"]),
    "mixture(eps=1e-6)": lambda s, x: _mixture(
        s, x, s["raw_a"].sigmoid(), 0.1 + F.softplus(s["raw_t"]), F.softplus(s["raw_eps"])
    ),
    "sincos(m=8)": _sincos,
    "favor(m=9, kernel=gaussian)": _gaussian,
    "favor(m=4, kernel=gaussian, features=hyperbolic)": lambda s, x: torch.cat([_gaussian(s, x), _gaussian(s, -x)], -1),
}


# Implementations that inputs of this size take, by test id.
LIMITS = {"all at once": Limits(), "in blocks": Limits(one_thread=0, few_features=0, block_elements=64 * 9)}


def built(spec: str, causal: bool, limits: Limits) -> Linear:
    """The mixer in fp64, with every parameter away from its start, where two forms may be equal."""
    mixer = builder(spec, limits)(head_dim=D, tokens=65, causal=causal).double()
    assert isinstance(mixer, Linear)
    source = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for p in mixer.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=source, dtype=torch.float64))
    return mixer


def expected_weights(state: Mapping[str, Tensor], formula: Formula, q: Tensor, k: Tensor, causal: bool) -> Tensor:
    s = formula(state, q) @ formula(state, k).mT
    s = s.tril() if causal else s
    return s / s.sum(-1, keepdim=True)


def equals_its_formula(spec: str, causal: bool, limits: Limits, wrong: Callable[[Kernel], None] | None = None) -> None:
    mixer, formula = built(spec, causal, limits), FORMULAS[spec]
    buffers = {name: buffer.clone() for name, buffer in mixer.kernel.named_buffers()}
    state = {**dict(mixer.kernel.named_parameters()), **buffers}
    if wrong is not None:
        wrong(mixer.kernel)
    q, k, v = tensors(65, D, dtype=torch.float64)
    expected = expected_weights(state, formula, q, k, causal)
    assert_close(mixer.weights(q, k), expected, 1e-9)
    wanted = (q, k, v, *mixer.parameters())
    outs = [(mixer(q, k, v), expected @ v)]
    if not causal:  # few queries, whose weights are computed first
        both = torch.eye(D, dtype=torch.float64).expand(2, HEADS, D, D)
        first = expected_weights(state, formula, q[:, :, :2], k[:, :1].expand_as(k), causal)
        outs.append((mixer.read(q[:, :, :2], UnprojectedTokens(k[:, 0], both, None)), first @ k[:, :1]))
    for out, twin in outs:
        assert_close(out, twin, 1e-9)
        for mine, other in zip(gradients(out, *wanted), gradients(twin, *wanted), strict=True):
            assert_close(mine, other, 1e-8)


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("spec", FORMULAS)
def test_attention_equals_the_formula_of_its_kernel(spec: str, limits: str, causal: bool) -> None:
    equals_its_formula(spec, causal, LIMITS[limits])


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
def test_wrong_form_differs_from_the_formula(spec: str, wrong: Callable[[Kernel], None], limits: str) -> None:
    with pytest.raises(AssertionError):
        equals_its_formula(spec, False, LIMITS[limits], wrong)


@pytest.mark.parametrize("spec", ["elu(raw=True)", "gelu(m=16, raw=True)", "learned(raw=True)", "sincos"])
def test_signed_features_have_no_floor(spec: str) -> None:
    kernel = KERNELS.build(spec, head_dim=8, layer=0, seed=0)
    assert kernel.queries(torch.randn(50, 8, generator=torch.Generator().manual_seed(0))).min() < 0
    assert cpu_kernel(kernel).floor(kernel) == 0


def test_raw_weights_blow_up_where_the_sum_of_a_row_crosses_zero() -> None:
    """Documented, not guarded: rows still sum to one, with weights of both signs that are as large as the sum is
    small.
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


def test_mixture_starts_at_the_same_values_raw_or_not() -> None:
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
def test_orthonormal_rows_are_those_of_torch(m: int, dim: int) -> None:
    rows = orthogonal_rows(m, dim, generator(0, "test"), "orthonormal")
    gram = rows.mT @ rows if m >= dim else rows @ rows.mT
    assert rows.shape == (m, dim)
    assert_close(gram, torch.eye(min(m, dim), dtype=torch.float64), 1e-12)
    theirs = torch.nn.init.orthogonal_(torch.empty(m, dim, dtype=torch.float64))
    assert rows.square().sum() == pytest.approx(theirs.square().sum().item())
    # No direction is favoured: the entries have mean zero, which needs the signs of QR.
    many = torch.stack([orthogonal_rows(m, dim, generator(seed, "test"), "orthonormal") for seed in range(2000)])
    assert many.mean(0).abs().max() < 4 * (max(m, dim) * 2000) ** -0.5


def test_bias_is_drawn_with_the_rows_and_redrawn_with_them() -> None:
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


def test_default_rows_are_those_of_earlier_versions() -> None:
    """New options may not change what an old spec draws."""
    (rows,) = KERNELS.build("relu(m=3)", head_dim=2, layer=1, seed=5).buffers()
    expected = [[-0.9403287, -1.0563058], [-1.0563058, 0.9403287], [-1.3425585, 0.4444509]]
    assert_close(rows, torch.tensor(expected), 1e-6)


@pytest.mark.parametrize("option", ["learned=True", "bias=True", "rows=orthonormal"])
def test_option_of_rows_without_m_is_rejected(option: str) -> None:
    with pytest.raises(FavoritError, match=f"{option} needs m, .* m=128, {option}"):
        build_mixer(f"elu({option})", heads=1, head_dim=4)


def test_sincos_with_odd_m_is_rejected() -> None:
    with pytest.raises(FavoritError, match=r"sincos: m=7 is not valid: .* even"):
        build_mixer("sincos(m=7)", heads=1, head_dim=4)


@pytest.mark.parametrize(("spec", "constant"), [("favor(m=4096, kernel=gaussian)", 0.0), ("sincos(m=4096)", 1.0)])
def test_weights_approach_those_of_the_gaussian_kernel(spec: str, constant: float) -> None:
    """Keys of different lengths, which the softmax kernel would weigh differently."""
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
