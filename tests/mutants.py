"""Wrong implementations, most of which are published. Each one has the name of the check that must reject it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from favorit import seeds
from favorit.attention import Linear, Mixer
from favorit.attention.kernels.contract import Kernel
from favorit.attention.kernels.favor import Favor
from favorit.attention.kernels.random_features import RandomRows
from favorit.selftest.inputs import Build, builder


def _with_rows(draw: Callable[[int, int, torch.Generator], Tensor]) -> Build:
    """favor(m=1024) whose projection is drawn by another function of (m, dim, generator)."""

    def build(*, seed: int = 0, **shape: Any) -> Mixer:
        mixer = builder("favor(m=1024)")(seed=seed, **shape)
        for module in mixer.modules():
            if isinstance(module, RandomRows):
                m, dim = module.rows.shape
                module.rows.copy_(draw(m, dim, seeds.generator(seed, "mutant")))
        return mixer

    return build


def _gaussian_blocks(m: int, dim: int, source: torch.Generator) -> Tensor:
    return torch.randn(-(-m // dim), dim, dim, generator=source, dtype=torch.float64)


def _lengths(blocks: Tensor, source: torch.Generator) -> Tensor:
    return torch.randn(blocks.shape, generator=source, dtype=torch.float64).norm(dim=-1)


def _unsigned(m: int, dim: int, source: torch.Generator) -> Tensor:
    blocks = torch.linalg.qr(_gaussian_blocks(m, dim, source)).Q
    return (blocks * _lengths(blocks, source)[..., None]).reshape(-1, dim)[:m]


def _scaled_columns(m: int, dim: int, source: torch.Generator) -> Tensor:
    q, r = torch.linalg.qr(_gaussian_blocks(m, dim, source))
    blocks = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    return (blocks * _lengths(blocks, source)[:, None, :]).reshape(-1, dim)[:m]


class _Wrong(Kernel):
    """Abstract: a wrong kernel. Methods that a subclass does not override are correct."""

    def __init__(self, right: Kernel) -> None:
        super().__init__()
        self.right, self.features = right, right.features

    def queries(self, q: Tensor) -> Tensor:
        return self.right.queries(q)

    def keys(self, k: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.right.keys(k)


class _OwnMaximum(_Wrong):
    """The maximum of each key is subtracted from its exponents, but not moved to r."""

    def keys(self, k: Tensor) -> tuple[Tensor, Tensor]:
        phi, r = self.right.keys(k)
        return phi, torch.zeros_like(r)


def _drops_factor_of_keys(**shape: Any) -> Mixer:
    """favor that maps keys as queries: exp(-|k~|^2 / 2) and the maximum of each key are dropped."""

    class QueriesAsKeys(Favor):
        def key_exponents(self, k: Tensor) -> Tensor:
            return self.query_exponents(k)

    mixer = builder("favor(m=9)")(**shape)
    mixer.kernel.__class__ = QueriesAsKeys
    return mixer


class _OneMaximum(_Wrong):
    """One maximum for all keys of a sequence. In causal attention, it depends on later keys."""

    def keys(self, k: Tensor) -> tuple[Tensor, Tensor]:
        phi, r = self.right.keys(k)
        return phi * torch.exp(r - r.amax(-2, keepdim=True)), torch.zeros_like(r)


class _BatchMaximum(_Wrong):
    """One maximum for the whole batch: large keys of one image can make the features of another underflow to 0."""

    def keys(self, k: Tensor) -> tuple[Tensor, Tensor]:
        phi, r = self.right.keys(k)
        return phi * torch.exp(r - r.amax()), torch.zeros_like(r)


class _NoConstant(_Wrong):
    """Sine and cosine features without the constant: phi(q) . phi(k) may be negative."""

    def queries(self, q: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(q[..., :1]), self.right.queries(q)[..., 1:]], -1)

    def keys(self, k: Tensor) -> tuple[Tensor, None]:
        return self.queries(k), None


def _with_kernel(wrap: Callable[[Kernel], Kernel], spec: str = "favor(m=64)") -> Build:
    def build(**shape: Any) -> Mixer:
        mixer = builder(spec)(**shape)
        assert isinstance(mixer, Linear)
        mixer.kernel = wrap(mixer.kernel)
        return mixer

    return build


class _NoFallback(Linear):
    """No guard in the denominator: a row whose features all underflow to 0 is 0/0."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        phi_q, (phi_k, _) = self.kernel.queries(q.float()), self.kernel.keys(k.float())
        return (phi_q @ (phi_k.mT @ v.float())) / (phi_q @ phi_k.sum(-2)[..., None])


class _MasksByMultiplication(Linear):
    """Features of masked keys are multiplied by zero: 0 * NaN = NaN."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        phi_q, (phi_k, _) = self.kernel.queries(q.float()), self.kernel.keys(k.float())
        if key_mask is not None:
            phi_k, v = (x * key_mask[:, None, :, None] for x in (phi_k, v))
        return (phi_q @ (phi_k.mT @ v.float())) / (phi_q @ phi_k.sum(-2)[..., None])


class _MasksFeatures(Linear):
    """Features of masked keys are replaced by zeros, but not the keys: their gradients are 0 * NaN."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        phi_q, (phi_k, _) = self.kernel.queries(q.float()), self.kernel.keys(k.float())
        if key_mask is not None:
            phi_k, v = (x.masked_fill(~key_mask[:, None, :, None], 0.0) for x in (phi_k, v))
        return (phi_q @ (phi_k.mT @ v.float())) / (phi_q @ phi_k.sum(-2)[..., None])


class _Cubed(_Wrong):
    """The third power of the features: their products overflow."""

    def queries(self, q: Tensor) -> Tensor:
        return self.right.queries(q) ** 3

    def keys(self, k: Tensor) -> tuple[Tensor, None]:
        return self.queries(k), None


class _HalfPrecisionSums(Linear):
    """Features and sums have the precision of the inputs."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        phi_q, (phi_k, _) = self.kernel.queries(q), self.kernel.keys(k)
        return (phi_q @ (phi_k.mT @ v)) / (phi_q @ phi_k.sum(-2)[..., None])


def _with_mixer(cls: type[Linear], spec: str) -> Build:
    def build(**shape: Any) -> Mixer:
        mixer = builder(spec)(**shape)
        assert isinstance(mixer, Linear)
        return cls(mixer.kernel, mixer.causal)

    return build


def _ignores_mask(build: Build) -> Build:
    def wrapped(**shape: Any) -> Mixer:
        mixer = build(**shape)
        right = mixer.forward
        mixer.forward = lambda q, k, v, key_mask=None: right(q, k, v)  # type: ignore[method-assign]
        return mixer

    return wrapped


def _sums_instead_of_means(build: Build) -> Build:
    """Weights that do not sum to one."""

    def wrapped(**shape: Any) -> Mixer:
        mixer = build(**shape)
        right, explicit = mixer.forward, mixer.weights
        mixer.forward = lambda q, k, v, key_mask=None: 2 * right(q, k, v)  # type: ignore[method-assign]
        mixer.weights = lambda q, k, key_mask=None: 2 * explicit(q, k)  # type: ignore[method-assign]
        return mixer

    return wrapped


def _reads_unscaled(**shape: Any) -> Mixer:
    """Softmax whose `read` divides scores by the square root of the token width instead of the head width."""
    mixer = builder("softmax")(**shape)
    right = mixer.read
    mixer.read = lambda q, tokens: right(q * (q.shape[-1] / tokens.x.shape[-1]) ** 0.5, tokens)  # type: ignore[method-assign]
    return mixer


def _centers_queries(build: Build) -> Build:
    """The mean query is subtracted, so each output depends on all queries. Computing only the first rows would change
    them.
    """

    def wrapped(**shape: Any) -> Mixer:
        mixer = build(**shape)
        right = mixer.forward
        mixer.forward = lambda q, k, v, key_mask=None: right(q - q.mean(-2, keepdim=True), k, v)  # type: ignore[method-assign]
        return mixer

    return wrapped


MUTANTS: dict[str, tuple[Build, str]] = {
    "QR without the signs of diag(R)": (_with_rows(_unsigned), "unbiased"),
    "features scaled along the wrong axis": (_with_rows(_scaled_columns), "unbiased"),
    "rows of equal length": (builder("favor(m=1024, norm=regular)"), "unbiased"),
    "maximum of each key dropped": (_with_kernel(_OwnMaximum, "favor(m=1024)"), "unbiased"),
    "keys mapped as queries": (_drops_factor_of_keys, "favor_follows_formula"),
    "one maximum for all keys in causal attention": (_with_kernel(_OneMaximum), "later_key_changes_nothing"),
    "one maximum for the whole batch": (_with_kernel(_BatchMaximum), "batch_independent"),
    "sine and cosine features without a constant": (_with_kernel(_NoConstant, "sincos(m=64)"), "non_negative"),
    "no fallback for vanishing features": (_with_mixer(_NoFallback, "favor(m=64)"), "finite_at_any_norm"),
    "sums in half precision": (_with_mixer(_HalfPrecisionSums, "relu"), "finite_at_any_norm"),
    "features cubed": (_with_kernel(_Cubed, "relu"), "finite_in_the_stated_range"),
    "no fallback for missing keys": (_with_mixer(_NoFallback, "relu"), "no_keys_give_zeros"),
    "masked features multiplied by zero": (_with_mixer(_MasksByMultiplication, "relu"), "masked_keys_may_be_undefined"),
    "keys masked after the feature map": (_with_mixer(_MasksFeatures, "gelu"), "masked_keys_may_be_undefined"),
    "masks ignored": (_ignores_mask(builder("relu")), "mask_equals_removal"),
    "queries that depend on each other": (_centers_queries(builder("softmax")), "queries_are_independent"),
    "scores divided by the token width": (_reads_unscaled, "read_equals_forward"),
    "weights without a normalizer": (_sums_instead_of_means(builder("relu")), "rows_sum_to_one"),
}
