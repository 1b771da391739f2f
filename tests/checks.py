"""Invariants of mixers as plain functions of a builder, so that the same code accepts the library and rejects the
mutants.

`build(causal=False, **shape)` makes a mixer of the given heads, head_dim and tokens; two calls with one seed make equal
mixers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from favorit.attention import Kernel, Linear, Mixer, build_mixer
from favorit.attention.cpu.limits import Limits
from favorit.attention.mixer import UnprojectedTokens
from favorit.spec import Spec, parse

Build = Callable[..., Mixer]

TOKENS = (1, 49, 63, 65, 197)
WIDTHS = (1, 3, 16, 64)
HEADS, BATCH = 2, 2


def builder(text: str, limits: Limits | None = None) -> Build:
    """A builder for a spec. Learned parameters and random features come from the seed alone.

    `limits` forces a CPU implementation that inputs of this size would not take.
    """
    spec = parse(text)

    def build(*, causal: bool = False, seed: int = 0, **shape: Any) -> Mixer:
        torch.manual_seed(seed)
        kwargs = {**spec.kwargs, "causal": True} if causal else spec.kwargs
        mixer = build_mixer(Spec(spec.name, spec.args, kwargs), heads=HEADS, seed=seed, **shape)
        if limits is not None:
            mixer.limits = limits
        return mixer

    return build


def near(build: Build) -> Build:
    """The mixer on tokens c + 0.3 tanh(x), c = (1, -1, 1, ...). Features keep their signs, and phi(q) . phi(k) stays
    near |phi(c)|^2: the weights of signed features are well defined there.
    """

    def built(**shape: Any) -> Mixer:
        mixer = build(**shape)
        assert isinstance(mixer, Linear)
        mixer.kernel = _Near(mixer.kernel)
        return mixer

    return built


class _Near(Kernel):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel
        self.features = kernel.features

    def queries(self, q: Tensor) -> Tensor:
        return self.kernel.queries(self._near(q))

    def keys(self, k: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.kernel.keys(self._near(k))

    def _near(self, x: Tensor) -> Tensor:
        center = torch.ones(x.shape[-1], dtype=x.dtype)
        center[1::2] = -1
        return center + 0.3 * x.tanh()


def tensors(
    n: int, d: int, *, n_keys: int | None = None, dtype: torch.dtype = torch.float32, seed: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Standard normal q, k, v that want gradients."""
    source = torch.Generator().manual_seed(seed)
    lengths = (n, n_keys or n, n_keys or n)
    q, k, v = (torch.randn(BATCH, HEADS, length, d, generator=source, dtype=torch.float64) for length in lengths)
    return q.to(dtype).requires_grad_(), k.to(dtype).requires_grad_(), v.to(dtype).requires_grad_()


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal within a tolerance relative to the largest expected entry (or 1, where all are smaller)."""
    scale = max(1.0, expected.abs().max().item())
    worst = (actual - expected).abs().max().item() / scale
    assert worst <= tolerance, f"differs by {worst:.2e} of the largest entry, allowed {tolerance:.0e}"


def gradients(out: Tensor, *wanted: Tensor) -> list[Tensor]:
    """The gradients of a fixed, uneven function of the output; zeros where it does not depend on an input."""
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(out.dtype)
    found = torch.autograd.grad((out * probe).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


class Products(TorchDispatchMode):
    """The types that each product, or torch's kernel, sees, forward and back."""

    def __init__(self) -> None:
        super().__init__()
        self.types: list[set[torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in str(func) for name in ("bmm", "aten.mm", "scaled_dot_product")):
            self.types.append({x.dtype for x in args if isinstance(x, Tensor)})
        return func(*args, **(kwargs or {}))


def weights_times_value_is_forward(build: Build) -> None:
    """The fast path and its explicit twin agree in values and in the gradients of inputs and parameters."""
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-11)):
        for n in TOKENS:
            for d in WIDTHS:
                mixer = build(head_dim=d, tokens=n).to(dtype)
                q, k, v = tensors(n, d, dtype=dtype)
                wanted = (q, k, v, *mixer.parameters())
                fast, slow = mixer(q, k, v), mixer.weights(q, k) @ v
                assert fast.dtype == dtype
                assert_close(fast, slow, tolerance)
                for mine, twin in zip(gradients(fast, *wanted), gradients(slow, *wanted), strict=True):
                    assert_close(mine, twin, 20 * tolerance)


def other_number_of_queries(build: Build) -> None:
    """Nq and Nk may differ, for the fast path and the explicit one."""
    for causal in (False, True):
        for n_queries, n_keys in ((1, 65), (63, 65), (130, 65)):
            mixer = build(head_dim=4, tokens=n_keys, causal=causal and _has_causal(build))
            q, k, v = tensors(n_queries, 4, n_keys=n_keys)
            assert mixer(q, k, v).shape == q.shape
            assert_close(mixer(q, k, v), mixer.weights(q, k) @ v, 2e-5)


def queries_are_alone(build: Build) -> None:
    """The first queries without the others: the same rows, and the gradients of these rows."""
    for causal in {False, _has_causal(build)}:
        for n_queries in (1, 3):
            mixer = build(head_dim=4, tokens=65, causal=causal).double()
            q, k, v = tensors(65, 4, dtype=torch.float64)
            wanted = (q, k, v, *mixer.parameters())
            rows, alone = mixer(q, k, v)[..., :n_queries, :], mixer(q[..., :n_queries, :], k, v)
            assert_close(alone, rows, 1e-11)
            for mine, twin in zip(gradients(alone, *wanted), gradients(rows, *wanted), strict=True):
                assert_close(mine, twin, 1e-9)


def reading_is_forward(build: Build) -> None:
    """Tokens whose keys and values are not made, read by few queries and by more than a head is wide: values and
    gradients.
    """
    for causal in {False, _has_causal(build)}:
        for n_queries in (1, 3, 4, 65):
            for biased in (True, False):
                for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
                    mixer = build(head_dim=4, tokens=65, causal=causal).to(dtype)
                    q, tokens = tensors(n_queries, 4, dtype=dtype)[0], _unprojected(dtype, biased)
                    wanted = [x for x in (q, *tokens, *mixer.parameters()) if x is not None]
                    read, made = mixer.read(q, tokens), mixer(q, *_projected(tokens))
                    assert read.dtype == dtype
                    assert_close(read, made, tolerance)
                    for mine, twin in zip(gradients(read, *wanted), gradients(made, *wanted), strict=True):
                        assert_close(mine, twin, 100 * tolerance)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    under = mixer.read(q, tokens)
                halved = UnprojectedTokens(*(None if part is None else part.bfloat16() for part in tokens))
                for found in (under, mixer.bfloat16().read(q.bfloat16(), halved)):
                    assert found.dtype == torch.bfloat16
                    assert_close(found.float(), made, 0.1)


def _unprojected(dtype: torch.dtype, biased: bool) -> UnprojectedTokens:
    source = torch.Generator().manual_seed(7)
    shapes = (BATCH, 65, 10), (2, HEADS, 4, 10), (2, HEADS, 4)
    x, weight, bias = (
        torch.randn(shape, generator=source, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes
    )
    return UnprojectedTokens(x, weight, bias if biased else None)


def _projected(tokens: UnprojectedTokens) -> Tensor:
    """Keys and values (2,B,H,N,D) by their definition."""
    both = torch.einsum("bnc,khdc->kbhnd", tokens.x, tokens.weight)
    return both if tokens.bias is None else both + tokens.bias[:, None, :, None]


def values_need_no_gradients(build: Build) -> None:
    """Without gradients another path may be taken, in place too: the same values, and inputs that stay as they are."""
    for causal in {False, _has_causal(build)}:
        for n, d in ((5, 3), (65, 16), (197, 64)):
            mixer = build(head_dim=d, tokens=n, causal=causal)
            inputs = tensors(n, d)
            before = [x.detach().clone() for x in inputs]
            with torch.no_grad():
                out = mixer(*inputs)
            assert_close(out, mixer(*inputs), 1e-6)
            assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


def no_images_are_a_batch(build: Build) -> None:
    """Of the last images of an epoch a process may get none."""
    for causal in {False, _has_causal(build)}:
        mixer = build(head_dim=4, tokens=9, causal=causal)
        inputs = [x[:0].detach().requires_grad_() for x in tensors(9, 4)]
        out = mixer(*inputs)
        assert out.shape == (0, HEADS, 9, 4)
        assert all(gradient.shape == x.shape for x, gradient in zip(inputs, gradients(out, *inputs), strict=True))


def autocast_leaves_fp64_as_it_is(build: Build) -> None:
    mixer = build(head_dim=4, tokens=9).double()
    q, k, v = tensors(9, 4, dtype=torch.float64)
    out = mixer(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = mixer(q, k, v)
    assert under.dtype == torch.float64
    assert_close(under, out, 1e-12)


def rows_sum_to_one(build: Build) -> None:
    for n in TOKENS:
        w = build(head_dim=16, tokens=n).weights(*tensors(n, 16)[:2])
        assert_close(w.sum(-1), torch.ones(BATCH, HEADS, n), 1e-5)


def non_negative(build: Build) -> None:
    for n in TOKENS:
        assert build(head_dim=16, tokens=n).weights(*tensors(n, 16)[:2]).min() >= 0


def constant_value_passes(build: Build) -> None:
    q, k, _ = tensors(65, 16)
    constant = torch.linspace(-3, 3, 16).expand_as(q)
    assert_close(build(head_dim=16, tokens=65)(q, k, constant), constant, 1e-5)


def single_token_is_its_value(build: Build) -> None:
    q, k, v = tensors(1, 16)
    assert_close(build(head_dim=16, tokens=1)(q, k, v), v, 1e-6)


def permutation_equivariant(build: Build) -> None:
    """Tokens in another order: the same outputs in that order."""
    q, k, v = tensors(65, 16)
    order = torch.randperm(65, generator=torch.Generator().manual_seed(3))
    mixer = build(head_dim=16, tokens=65)
    assert_close(mixer(q[:, :, order], k[:, :, order], v[:, :, order]), mixer(q, k, v)[:, :, order], 1e-5)


def batch_independent(build: Build) -> None:
    """What else is in the batch, however large or small beside an image, changes nothing for it."""
    q, k, v = tensors(65, 16)
    mixer = build(head_dim=16, tokens=65)
    for own, other in ((1, 50), (15, 0.01)):
        alone = mixer(q[:1], own * k[:1], v[:1])
        together = mixer(torch.cat([q[:1], other * q[1:]]), torch.cat([own * k[:1], other * k[1:]]), v)
        assert_close(together[:1], alone, 1e-6)


def mask_equals_removal(build: Build) -> None:
    """A masked key is as if it were not there, whatever it holds; values and gradients."""
    n, kept = 70, 41
    q, k, v = tensors(n, 16)
    keep = torch.randperm(n, generator=torch.Generator().manual_seed(4))[:kept].sort().values
    mask = torch.zeros(BATCH, n, dtype=torch.bool)
    mask[:, keep] = True
    large = torch.where(mask[:, None, :, None], k, 40 * k)
    mixer = build(head_dim=16, tokens=n)
    masked, removed = mixer(q, large, v, key_mask=mask), mixer(q, k[:, :, keep], v[:, :, keep])
    assert_close(masked, removed, 1e-5)
    assert_close(mixer.weights(q, large, key_mask=mask) @ v, masked, 1e-5)
    for mine, twin in zip(gradients(masked, q, v), gradients(removed, q, v), strict=True):
        assert_close(mine, twin, 1e-4)


def all_masked_is_finite(build: Build) -> None:
    """An image with no key to look at makes no NaN, neither its own nor others'; forward and the explicit weights agree
    on it.
    """
    mask = torch.ones(BATCH, 9, dtype=torch.bool)
    mask[0] = False
    for length in (1.0, 1e3):
        for causal in {False, _has_causal(build)}:
            q, k, v = (length * x.detach() for x in tensors(9, 16))
            q, k, v = q.requires_grad_(), k.requires_grad_(), (v / length).detach().requires_grad_()
            mixer = build(head_dim=16, tokens=9, causal=causal)
            out = mixer(q, k, v, key_mask=mask)
            assert_close(out, mixer.weights(q, k, key_mask=mask) @ v, 1e-5)
            assert_close(out[1:], mixer(q[1:], k[1:], v[1:]), 1e-5)
            assert all(g.isfinite().all() for g in gradients(out, q, k, v))


def finite_at_any_norm(build: Build) -> None:
    """Outputs and gradients are finite for norms from 1e-4 to 1e4, in fp32 and under bf16 and fp16 autocast."""
    norms = (1e-4, 1.0, 1e2, 1e4)
    # Of tokens [k, v] the first half is the key of every head, the second its value.
    halves = torch.eye(32).view(2, 1, 16, 32).expand(2, HEADS, 16, 32)
    for dtype in (None, torch.bfloat16, torch.float16):
        for norm_q in norms:
            for norm_k in norms:
                for causal in {False, _has_causal(build)}:
                    mixer = build(head_dim=16, tokens=65, causal=causal)
                    q, k, v = tensors(65, 16)
                    q_scaled, k_scaled = (
                        norm * x / x.norm(dim=-1, keepdim=True) for norm, x in ((norm_q, q), (norm_k, k))
                    )
                    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                        out = mixer(q_scaled, k_scaled, v)
                        read = mixer.read(
                            q_scaled[:, :, :1],
                            UnprojectedTokens(torch.cat([k_scaled[:, 0], v[:, 0]], -1), halves, None),
                        )
                    place = f"autocast {dtype}, |q| {norm_q}, |k| {norm_k}, causal {causal}"
                    assert out.isfinite().all(), place
                    assert read.isfinite().all(), f"reading, {place}"
                    both = out.float().sum() + read.float().sum()
                    for g in torch.autograd.grad(both, (q, k, v, *mixer.parameters()), allow_unused=True):
                        assert g is None or g.isfinite().all(), f"gradient, {place}"


def state_round_trips(build: Build) -> None:
    """A state dictionary carries all that the output depends on, random features included."""
    q, k, v = tensors(65, 16)
    one, other = build(head_dim=16, tokens=65, seed=0), build(head_dim=16, tokens=65, seed=1)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(q, k, v), other(q, k, v))


def same_seed_same_mixer(build: Build) -> None:
    q, k, v = tensors(65, 16)
    assert torch.equal(build(head_dim=16, tokens=65, seed=5)(q, k, v), build(head_dim=16, tokens=65, seed=5)(q, k, v))


def causal_equals_prefixes(build: Build) -> None:
    """Row i of the causal form is the plain form on keys 0..i; values and gradients, across the borders of blocks."""
    n = 135
    causal, plain = build(head_dim=8, tokens=n, causal=True), build(head_dim=8, tokens=n)
    q, k, v = tensors(n, 8)
    fast = causal(q, k, v)
    slow = torch.cat([plain(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]) for i in range(n)], -2)
    assert_close(fast, slow, 2e-5)
    for mine, twin in zip(gradients(fast, q, k, v), gradients(slow, q, k, v), strict=True):
        assert_close(mine, twin, 5e-4)
    w = causal.weights(q, k)
    assert w.triu(1).abs().max() == 0
    assert_close(w @ v, fast, 2e-5)


def later_key_changes_nothing(build: Build) -> None:
    """After keys of norm 60, one of norm 0.01 leaves every earlier row as it was, also within a block."""
    for n in (20, 90):
        mixer = build(head_dim=16, tokens=n, causal=True)
        q, k, v = tensors(n, 16)
        large = 60 * k / k.norm(dim=-1, keepdim=True)
        late = torch.cat([large[:, :, :-1], 0.01 * k[:, :, -1:] / k[:, :, -1:].norm(dim=-1, keepdim=True)], -2)
        before, after = mixer(q, large, v)[:, :, :-1], mixer(q, late, v)[:, :, :-1]
        assert_close(after, before, 1e-6)
        plain = build(head_dim=16, tokens=n)
        assert_close(after[:, :, -1:], plain(q[:, :, n - 2 : n - 1], large[:, :, :-1], v[:, :, :-1]), 1e-4)


def _has_causal(build: Build) -> bool:
    try:
        return build(head_dim=4, tokens=4, causal=True).causal
    except ValueError:
        return False


MIXER_CHECKS: dict[str, Callable[[Build], None]] = {
    check.__name__: check
    for check in (
        weights_times_value_is_forward,
        other_number_of_queries,
        queries_are_alone,
        reading_is_forward,
        values_need_no_gradients,
        no_images_are_a_batch,
        autocast_leaves_fp64_as_it_is,
        rows_sum_to_one,
        non_negative,
        constant_value_passes,
        single_token_is_its_value,
        permutation_equivariant,
        batch_independent,
        mask_equals_removal,
        all_masked_is_finite,
        finite_at_any_norm,
        state_round_trips,
        same_seed_same_mixer,
        causal_equals_prefixes,
        later_key_changes_nothing,
    )
}


def estimates(build: Build, z: Tensor, apart: Tensor, draws: int) -> Tensor:
    """(draws, cases): raw estimates of exp(q~ . k~) over exp(q~ . k~), for q~ = z/2 + apart, k~ = z/2 - apart.

    Attention weights are known up to a factor for each query; the key -q, whose estimate is exactly exp(-|q~|^2), fixes
    it.
    """
    d = z.shape[-1]
    q, k = (z / 2 + apart) * d**0.25, (z / 2 - apart) * d**0.25
    q_tilde, k_tilde = z / 2 + apart, z / 2 - apart
    queries = q[:, None, None, :].expand(-1, HEADS, -1, -1)
    keys = torch.stack([k, -q], 1)[:, None].expand(-1, HEADS, -1, -1)
    found = []
    for draw in range(draws):
        w = build(head_dim=d, tokens=2, seed=draw).double().weights(queries, keys)[:, 0, 0]
        found.append(w[:, 0] / w[:, 1] * torch.exp(-q_tilde.square().sum(-1) - (q_tilde * k_tilde).sum(-1)))
    return torch.stack(found)


def directions(d: int) -> Tensor:
    """Unit vectors: all ones, an axis, all ones with one sign changed, and two random ones."""
    ones = torch.ones(d, dtype=torch.float64)
    flipped = ones.clone()
    flipped[0] = -1
    random = torch.randn(2, d, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    return torch.nn.functional.normalize(
        torch.stack([ones, torch.eye(d, dtype=torch.float64)[0], flipped, *random]), dim=-1
    )


def unbiased(build: Build) -> None:
    """The mean of many draws is within 1 % of exp(q . k / sqrt(D)) in every direction at |z| <= 1, for head widths 4,
    8, 16.
    """
    for d in (4, 8, 16):
        for length in (0.5, 1.0):
            z = length * directions(d)
            ratio = estimates(build, z, 0.2 * directions(d).roll(1, 0), draws=400).mean(0)
            worst = (ratio - 1).abs().max().item()
            assert worst < 0.01, (
                f"estimate/true is off by {worst:.3f} at head width {d}, |z| {length}: {ratio.tolist()}"
            )


def squared_errors(build: Build, d: int, length: float, draws: int) -> Tensor:
    """(draws,): the squared relative error of each draw, averaged over 64 directions of z."""
    source = torch.Generator().manual_seed(8)
    z = length * torch.nn.functional.normalize(torch.randn(64, d, generator=source, dtype=torch.float64), dim=-1)
    return (estimates(build, z, torch.zeros_like(z), draws) - 1).square().mean(1)
