"""Linear attention over any kernel.

Shapes: B batch, H heads, N tokens (Nq, Nk), D head width, M features.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from favorit.attention import streamed as in_blocks
from favorit.attention.causal import BLOCK, part_sizes, prefix_sums, recomputed
from favorit.attention.few import few_weights
from favorit.attention.kernel import Kernel, only, or_zero
from favorit.attention.mixer import MIXERS, Mixer, Tokens, allowed_keys
from favorit.attention.precision import (
    WIDE,
    full_precision,
    is_full_precision,
    multiplied_in_bf16,
    output_dtype,
    widened,
)
from favorit.attention.streamed import TINY, finite, plain
from favorit.attention.threads import alone, is_tiny
from favorit.errors import FavoritError
from favorit.spec import Registry, parameters_of


class Linear(Mixer):
    """out_i = (phi(q_i) mean_j phi(k_j) v_j^T + d mean_j v_j) / (phi(q_i) . mean_j phi(k_j) + d), d = 1e-30; O(N M D).

    The means run over the keys that query i may see. Keys come as phi_j exp(r_j); only exp(r_j - max r) is ever formed,
    so that no norm of q or k overflows. A key left out by a mask has r_j = -inf. Many features of bf16 stay bf16 where
    the processor multiplies it and the kernel allows (`Kernel.rounds`); all else is computed in fp32 or better.
    """

    def __init__(self, kernel: Kernel, causal: bool = False) -> None:
        super().__init__()
        self.kernel = kernel
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        # On short sequences a context that changes nothing costs as much as a product, and a call of Python as a small
        # operation.
        if not is_full_precision(q, k, v):
            return self._of_half_precision(q, k, v, key_mask)
        kernel = cast(
            Kernel, self._modules["kernel"]
        )  # as an attribute torch finds it by a look-up that fails first: 2 us of 80
        features = _tokens(q, k) * kernel.features
        if not _are_many(features):
            if is_tiny(features, q, v):
                return alone(self._at_once, kernel, q, k, v, key_mask)
            return self._at_once(kernel, q, k, v, key_mask)
        if self.causal:
            return recomputed(partial(self._at_once, kernel), kernel, q, k, v, key_mask)
        return in_blocks.streamed(kernel, q, k, v, key_mask)

    def _of_half_precision(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        dtype = output_dtype(v)
        if key_mask is None and self._product_dtype(q, k, v) not in WIDE:
            with torch.autocast(v.device.type, enabled=False):
                return in_blocks.streamed(self.kernel, q.to(dtype), k.to(dtype), v.to(dtype), None)
        with full_precision(q, k, v) as wide:
            return Linear.forward(self, *wide, key_mask=key_mask).to(dtype)

    def _product_dtype(self, q: Tensor, k: Tensor, v: Tensor) -> torch.dtype:
        """Of features and products: bf16 where it may be and features are many, a head's in one block, as blocks would
        be added up in bf16; else fp32 or better.
        """
        narrow = (
            self.kernel.rounds
            and not self.causal
            and _are_many(_tokens(q, k) * self.kernel.features)
            and multiplied_in_bf16(q, k, v)
        )
        tokens = max(q.shape[-2], k.shape[-2])
        whole = narrow and in_blocks.block_sizes(1, tokens, self.kernel.features, torch.bfloat16) == (1, tokens)
        return torch.bfloat16 if whole else widened(q.dtype)

    def _at_once(self, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        phi_k, r = kernel.keys(k)
        if key_mask is not None:
            r = only(key_mask[:, None, :, None], r, phi_k)
        return (prefix_sums if self.causal else plain)(kernel.queries(q), phi_k, r, v, kernel.least)

    def read(self, q: Tensor, tokens: Tokens) -> Tensor:
        """out_i = W_v sum_j w_ij x_j + b_v: with fewer queries than a head is wide, weights and then tokens are fewer
        products than sums over keys and values.
        """
        if not self._weighs(q, tokens):
            return super().read(q, tokens)
        k = tokens.keys()
        dtype = self._product_dtype(q, k, k)
        with torch.autocast(k.device.type, enabled=False):
            w = few_weights(self.kernel, q, k.to(dtype))
        mixed = torch.bmm(w.flatten(1, 2).to(tokens.x.dtype), tokens.x)
        return tokens.values(mixed.unflatten(1, w.shape[1:3]))

    def explain_read(self, q: Tensor, tokens: Tokens) -> str:
        if not self._weighs(q, tokens):
            return super().explain_read(q, tokens)
        first = f"weights first, as there are {q.shape[-2]} queries to a head of width {q.shape[-1]}, and values folded"
        return f"{first}; {super().explain_read(q, tokens)}"

    def _weighs(self, q: Tensor, tokens: Tokens) -> bool:
        """Whether weights are fewer products than sums over keys, and features many. Another class may mean something
        else by forward.
        """
        few = type(self).forward is Linear.forward and not self.causal and q.shape[-2] < q.shape[-1]
        return few and _are_many(q.shape[:2].numel() * tokens.x.shape[1] * self.kernel.features)

    def explain(self, q: Tensor, k: Tensor, v: Tensor) -> str:
        batch, heads, tokens, features = *q.shape[:2], max(q.shape[-2], k.shape[-2]), self.kernel.features
        sums = f"prefix sums over blocks of {BLOCK} tokens at most, of " if self.causal else ""
        if not _are_many(numbers := _tokens(q, k) * features):
            why = "torch.compile is at work" if torch.compiler.is_compiling() else "they are few"
            return f"{sums}all features at once{', forward on one thread' if is_tiny(numbers, q, v) else ''}: {why}"
        back = (
            ", recomputed going back"
            if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
            else ""
        )
        again = f"their {features} features stay in cache{back}"
        if self.causal:
            images, together = part_sizes(batch, heads, tokens, features)
            return f"{sums}{together} of the {heads} heads of {images} images at a time: {again}"
        dtype = self._product_dtype(q, k, v)
        groups, length = in_blocks.block_sizes(batch * heads, tokens, features, dtype)
        narrow = "" if dtype in WIDE else ", in bf16 as the processor multiplies it"
        return f"blocks of {groups} of the {batch * heads} heads of all images and {length} tokens{narrow}: {again}"

    def weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        with full_precision(q, k) as (q, k):
            phi_q, (phi_k, r) = self.kernel.queries(q), self.kernel.keys(k)
            scale = or_zero(r, phi_k).mT.expand(*q.shape[:-1], k.shape[-2])
            allowed = allowed_keys(q, k, key_mask, self.causal)
            if allowed is not None:
                scale = scale.masked_fill(~allowed, -torch.inf)
            kept = scale > -torch.inf
            count = kept.sum(-1, keepdim=True).clamp(min=1)
            w = (phi_q @ phi_k.mT) * torch.exp(scale - finite(scale.amax(-1, keepdim=True)))
            return (w + TINY * kept.to(w)) / count / (w.sum(-1, keepdim=True) / count + TINY)


def _are_many(features: int) -> bool:
    """Whether so many features, of all tokens and heads together, are worth cutting into blocks."""
    # In this order: a compiler that met the sizes first would compile once for each answer.
    return not torch.compiler.is_compiling() and features > in_blocks.FEW_NUMBERS


def _tokens(q: Tensor, k: Tensor) -> int:
    """Of all heads of all images together; none where there are no queries or no keys."""
    return max(q.numel(), k.numel()) // q.shape[-1] if q.numel() and k.numel() else 0


KERNELS: Registry[Kernel] = Registry("kernel", context=("head_dim", "layer", "seed"))


def add_kernel(name: str, builder: Callable[..., Kernel], parameters: dict[str, Any] | None = None) -> None:
    """Registers a kernel, and the linear mixer over it under the same name: `relu(m=64, causal=True)`."""
    KERNELS.add(name, builder, parameters)
    entry = KERNELS[name]
    reserved = parameters_of(Linear, ("self", "kernel"))
    if clash := reserved.keys() & entry.parameters.keys():
        raise FavoritError(
            f"kernel {name!r}: {', '.join(sorted(clash))} belongs to the mixer; name the parameter differently"
        )

    def build(**values: Any) -> Linear:
        own = {key: values[key] for key in (*entry.parameters, *entry.context) if key in values}
        return Linear(entry.builder(**own), **{key: values[key] for key in reserved if key in values})

    build.__doc__ = builder.__doc__
    MIXERS.add(name, build, {**entry.parameters, **reserved})


def kernel(name: str) -> Callable[[type[Kernel]], type[Kernel]]:
    """Class decorator: registers a kernel under a name."""

    def decorate(cls: type[Kernel]) -> type[Kernel]:
        add_kernel(name, cls)
        return cls

    return decorate
