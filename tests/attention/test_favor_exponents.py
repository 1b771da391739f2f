"""favor follows its formula where the products of its features underflow: queries and keys of any norm."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from favorit.attention import Linear
from favorit.attention.cpu.limits import Limits
from favorit.attention.exponential import exact_attention
from favorit.attention.kernels.contract import ExponentialKernel
from favorit.attention.mixer import UnprojectedTokens
from favorit.selftest.inputs import assert_close, builder, gradients, tensors

TOKENS, WIDTH = 70, 16
BLOCKED = Limits(one_thread=0, few_feature_elements=0, block_elements=24 * 100)
LIMITS = {"all at once": Limits(), "in blocks": BLOCKED}
SPECS = ["favor(m=24)", "favor(m=24, features=hyperbolic)", "favor(m=24, kernel=gaussian)"]
# The largest error that rounding of the exponents causes, for each standard deviation of q and k.
FP32_ERRORS = {1: 1e-4, 3: 1e-4, 10: 2e-3, 30: 2e-2}


def favor(spec: str, causal: bool, limits: Limits | None = None) -> Linear:
    mixer = builder(spec, limits)(head_dim=WIDTH, tokens=TOKENS, causal=causal)
    assert isinstance(mixer, Linear)
    return mixer


def formula_weights(mixer: Linear, spec: str, q: Tensor, k: Tensor, kept: Tensor) -> Tensor:
    """softmax_j(log sum_m exp(W q~_i + W k~_j - decay |k~_j|^2)) in fp64, from the definition of favor."""
    rows = mixer.get_buffer("kernel.projection.rows").double()
    q, k = (x.double() * WIDTH**-0.25 for x in (q, k))
    u_q, u_k = q @ rows.mT, k @ rows.mT
    if "hyperbolic" in spec:
        u_q, u_k = torch.cat([u_q, -u_q], -1), torch.cat([u_k, -u_k], -1)
    e = u_k - (1.0 if "gaussian" in spec else 0.5) * k.square().sum(-1, keepdim=True)
    scores = torch.logsumexp(u_q[..., :, None, :] + e[..., None, :, :], -1)
    return scores.masked_fill(~kept, -torch.inf).softmax(-1)


def visible(causal: bool, mask: Tensor | None) -> Tensor:
    kept = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    kept = kept.tril() if causal else kept
    return kept if mask is None else kept & mask[:, None, None, :]


def relative_errors(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(((x.double() - y).norm() / y.norm()).item() for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("deviation", FP32_ERRORS)
def test_values_and_gradients_equal_the_formula(
    deviation: int, spec: str, limits: str, causal: bool, masked: bool
) -> None:
    """In fp32 and fp64, for forward, the direct form and the explicit weights."""
    mask = None
    if masked:
        mask = torch.rand(2, TOKENS, generator=torch.Generator().manual_seed(0)) < 0.7
        mask[:, 0] = True
    for dtype, tolerance in ((torch.float32, FP32_ERRORS[deviation]), (torch.float64, 1e-9)):
        mixer = favor(spec, causal, LIMITS[limits]).to(dtype)
        q, k, v = (x.detach().to(dtype) for x in tensors(TOKENS, WIDTH))
        q, k, v = (x.requires_grad_() for x in (deviation * q, deviation * k, v))
        wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
        w = formula_weights(mixer, spec, wide[0], wide[1], visible(causal, mask))
        expected = [w @ wide[2], *gradients(w @ wide[2], *wide)]
        for out in (
            mixer(q, k, v, key_mask=mask),
            mixer.direct(q, k, v, mask),
            mixer.weights(q, k, key_mask=mask) @ v,
        ):
            assert relative_errors([out, *gradients(out, q, k, v)], expected) < tolerance


@pytest.mark.parametrize("causal", [False, True])
def test_sums_of_products_of_scaled_features_vanish_at_large_norms(causal: bool) -> None:
    """So the test above needs the exponents at these norms."""
    mixer = favor(SPECS[0], causal)
    q, k, _ = (30 * x.detach() for x in tensors(TOKENS, WIDTH))
    phi_q, (u, r) = mixer.kernel.queries(q), mixer.kernel.keys(k)
    assert r is not None
    assert ((phi_q @ u.mT) == 0).double().mean() > 0.2


@pytest.mark.parametrize("queries", [1, 3])
def test_read_equals_the_formula_at_large_norms(queries: int) -> None:
    """The weights of few queries vanish too, so keys and values are projected."""
    mixer = favor(SPECS[0], False, BLOCKED)
    x, q = 30 * tensors(TOKENS, WIDTH)[1][:, 0].detach(), 30 * tensors(TOKENS, WIDTH)[0].detach()[:, :, :queries]
    tokens = UnprojectedTokens(x, torch.eye(WIDTH).expand(2, 2, WIDTH, WIDTH), None)
    k = x.unsqueeze(1).expand(-1, 2, -1, -1)
    assert "weights first" in mixer.explain_read(q, tokens)
    w = formula_weights(mixer, SPECS[0], q, k, visible(False, None)[:queries])
    assert relative_errors([mixer.read(q, tokens)], [w @ k.double()]) < FP32_ERRORS[30]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("norm", [1e15, 1e18, 1e19, 1e20, 1e25])
def test_outputs_and_gradients_are_finite_at_any_norm(norm: float, limits: str, spec: str) -> None:
    for causal in (False, True):
        mixer = favor(spec, causal, LIMITS[limits])
        for norm_q, norm_k in ((norm, norm), (norm, 1.0), (1.0, norm)):
            q, k, v = (x.detach() for x in tensors(TOKENS, WIDTH))
            q, k = (length * x / x.norm(dim=-1, keepdim=True) for length, x in ((norm_q, q), (norm_k, k)))
            q, k, v = (x.requires_grad_() for x in (q, k, v))
            for out in (mixer(q, k, v), mixer.direct(q, k, v)):
                assert all(x.isfinite().all() for x in (out, *gradients(out, q, k, v)))


@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (5, 5), (5, 9), (9, 5), (64, 64), (65, 65), (1, 7)])
def test_causal_halves_equal_prefixes(n_queries: int, n_keys: int) -> None:
    """Row i equals attention over the keys 0..i, for any number of queries and keys."""
    mixer = favor(SPECS[0], True).double()
    assert isinstance(mixer.kernel, ExponentialKernel)
    q, k, v = tensors(n_queries, WIDTH, n_keys=n_keys, dtype=torch.float64)
    q, k = 10 * q, 10 * k
    causal = exact_attention(mixer.kernel, q, k, v, None, is_causal=True)
    for i in range(n_queries):
        seen = k[:, :, : i + 1], v[:, :, : i + 1]
        alone = exact_attention(mixer.kernel, q[:, :, i : i + 1], *seen, None, is_causal=False)
        assert_close(causal[:, :, i : i + 1], alone, 1e-12)


def test_blocked_attention_from_exponents_keeps_no_tensor_of_tokens_times_features() -> None:
    mixer = favor("favor(m=512)", False, Limits(one_thread=0, few_feature_elements=0))
    q, k, v = tensors(600, WIDTH)
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        mixer(30 * q, 30 * k, v)
    assert 0 < max(sizes) <= 2 * 2 * 600 * (WIDTH + 1)
