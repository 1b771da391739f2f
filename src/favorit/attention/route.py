"""Dispatch: which implementation computes a call of softmax or linear attention, and the reason.

Four tables: LINEAR and SOFTMAX for `forward`, READ_LINEAR and READ_SOFTMAX for `read`. The first row whose condition
holds is used. `forward` and `explain` use the same tables. Only eager calls on the CPU use CPU implementations. On
other devices, inside `torch.compile`, inside transforms of torch.func and in forward-mode differentiation, `forward`
computes the direct form, and `read` projects all keys and values. Conditions depend on shapes, dtypes and flags, never
on values, so they force no device sync. Only the CPU implementations look at values: where a sum of weights of an
`ExponentialKernel` would vanish, they compute attention from the exponents of the features, as the direct form does.

Example: relu(m=128), batch 128, 4 heads, 65 tokens, training in fp32.
- On a CPU, LINEAR is used. The call has 128 * 4 * 65 * 128 = 4.3 million feature elements: too many for the rows of
  short calls. It is not causal and not in bf16. The last row applies: `cpu/blocked.py`, with features from
  `cpu/relu.py`.
- On CUDA, the row of the direct form applies: `Linear.direct` with `Pointwise` (`kernels/pointwise.py`).

Shapes: B batch, H heads, N tokens (Nq queries, Nk keys), D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from favorit.attention.cpu import blocked, explicit_softmax, few_queries, folded_softmax, in_parts, short, threads
from favorit.attention.cpu.block_features import cpu_kernel
from favorit.attention.cpu.precision import is_bf16_product
from favorit.attention.cpu.tiling import block_sizes
from favorit.attention.derivatives import is_transformed
from favorit.attention.dtypes import HALF, in_full_precision, output_dtype, widened
from favorit.attention.mixer import UnprojectedTokens


class LinearCall(NamedTuple):
    """One forward of `Linear`."""

    mixer: Any
    kernel: Any  # a Kernel
    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None


class SoftmaxCall(NamedTuple):
    """One forward of `Softmax`."""

    mixer: Any
    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None


class ReadCall(NamedTuple):
    """One `read` of a mixer: few queries over tokens whose keys and values are not projected yet.

    `formula` is the class whose `forward` the faster rows compute. They do not apply to a subclass that overrides it.
    """

    mixer: Any
    formula: type
    q: Tensor
    tokens: UnprojectedTokens


class Route(NamedTuple):
    """One row of a table: its condition, the reason in words, and the implementation.

    If the implementation calls `forward`, `explain_forward` returns the reason for the row that this call uses.
    """

    applies: Callable[[Any], bool]
    reason: str
    implementation: Callable[[Any], Tensor]
    explain_forward: Callable[[Any], str] | None = None


def choose(table: Sequence[Route], call: Any) -> Route:
    """The first row that applies. The last row of each table always applies."""
    return next(row for row in table if row.applies(call))


def explain(table: Sequence[Route], call: Any) -> str:
    """The reasons for the chosen implementation."""
    row = choose(table, call)
    return row.reason if row.explain_forward is None else f"{row.reason}; {row.explain_forward(call)}"


def run(table: Sequence[Route], call: Any) -> Tensor:
    """The result of the chosen implementation."""
    for row in table:  # not `choose`: its generator takes 1 of the 80 us of a short call
        if row.applies(call):
            return row.implementation(call)
    raise AssertionError("the last row of a table applies to every call")


def always(call: Any) -> bool:
    """The condition of the last row of each table."""
    return True


def is_not_eager_cpu(call: Any) -> bool:
    """True for other devices, inside torch.compile, inside transforms of torch.func and in forward mode."""
    # This must come before conditions on sizes: torch.compile would recompile whenever such a condition changes.
    return not call.q.is_cpu or torch.compiler.is_compiling() or is_transformed()


def has_no_keys(call: LinearCall) -> bool:
    """True if there is no key. torch.compile treats size 0 as constant, so this adds no recompilation."""
    return call.k.shape[-2] == 0


def direct(call: Any) -> Tensor:
    """The mixer's own formula."""
    return call.mixer.direct(call.q, call.k, call.v, call.key_mask)


def num_feature_elements(call: LinearCall) -> int:
    """The features of all tokens and heads, of queries or keys, whichever are more; 0 without queries or keys."""
    q, k = call.q, call.k
    largest = max(q.numel(), k.numel()) if q.numel() and k.numel() else 0
    return largest // q.shape[-1] * call.kernel.features


def fits_one_thread(call: LinearCall) -> bool:
    """True if torch itself computes elementwise operations of this size on one thread."""
    limit = call.mixer.limits.one_thread
    is_small = num_feature_elements(call) < limit and call.q.numel() < limit and call.v.numel() < limit
    return is_small and threads.limit_mkl_threads is not None


def has_few_features(call: LinearCall) -> bool:
    """True if cutting the features into blocks costs more than it saves."""
    return num_feature_elements(call) <= call.mixer.limits.few_feature_elements


def uses_bf16(call: LinearCall) -> bool:
    """True if the call asks for bf16 (inputs or autocast) and has no mask, the kernel allows bf16, the CPU has bf16
    instructions, and a head fits into one block, so that each sum is rounded once.
    """
    if call.key_mask is not None or not cpu_kernel(call.kernel).allows_bf16(call.kernel):
        return False
    tokens = max(call.q.shape[-2], call.k.shape[-2])
    one_head = block_sizes(1, tokens, call.kernel.features, torch.bfloat16, call.mixer.limits)
    return one_head == (1, tokens) and is_bf16_product(call.q, call.k, call.v, call.mixer.limits)


def short_attention(call: LinearCall) -> Tensor:
    """Linear attention with all features in memory."""
    return in_full_precision(short.attend, call.q, call.k, call.v, call.key_mask, call.kernel, call.mixer.causal)


def in_blocks(attend: Callable[..., Tensor], call: LinearCall) -> Tensor:
    """Runs an implementation that computes block sizes from `limits`."""
    return in_full_precision(attend, call.q, call.k, call.v, call.key_mask, call.kernel, call.mixer.limits)


LINEAR = (
    Route(
        has_no_keys,
        "zeros: there are no keys",
        # A function of q, k and v, so that they get zero gradients.
        lambda call: in_full_precision(lambda q, k, v: q @ k.mT @ v, call.q, call.k, call.v),
    ),
    Route(is_not_eager_cpu, "direct form: not an eager call on the CPU", direct),
    Route(
        fits_one_thread,
        "all features at once, on one thread: too few to split between threads",
        lambda call: threads.on_one_thread(short_attention, call),
    ),
    Route(has_few_features, "all features at once: too few to cut into blocks", short_attention),
    Route(
        lambda call: bool(call.mixer.causal),
        "prefix sums over some heads at a time: features stay in cache and are recomputed in backward",
        lambda call: in_blocks(in_parts.attend_causal, call),
    ),
    Route(
        uses_bf16,
        "blocks in bf16, which this CPU supports: features stay in cache and are recomputed in backward",
        lambda call: blocked.attend_in_bf16(call.q, call.k, call.v, call.kernel, call.mixer.limits),
    ),
    Route(
        always,
        "blocks of heads and tokens: features stay in cache and are recomputed in backward",
        lambda call: in_blocks(blocked.attend, call),
    ),
)


def needs_no_gradient(call: SoftmaxCall) -> bool:
    """True in inference, where torch's kernel is the fastest."""
    return not (torch.is_grad_enabled() and (call.q.requires_grad or call.k.requires_grad or call.v.requires_grad))


def num_weights(call: SoftmaxCall) -> int:
    """The number of attention weights in all heads."""
    return call.q.shape[:-1].numel() * call.k.shape[-2]


def most_tokens(call: SoftmaxCall) -> int:
    """The larger number of queries and keys."""
    return max(call.q.shape[-2], call.k.shape[-2])


def is_fp32(call: SoftmaxCall) -> bool:
    """True if all tensors and the output are fp32."""
    return {x.dtype for x in (call.q, call.k, call.v)} == {torch.float32} == {output_dtype(call.v)}


def is_bf16(call: SoftmaxCall) -> bool:
    """True if the call asks for bf16 (inputs or autocast) and the CPU has bf16 instructions."""
    return is_bf16_product(call.q, call.k, call.v, call.mixer.limits)


def is_half_faster_in_fp32(call: SoftmaxCall) -> bool:
    """True for half precision and sequence lengths at which torch's kernel trains faster in fp32."""
    return output_dtype(call.v) in HALF and most_tokens(call) <= call.mixer.limits.fp32_backward_tokens


def is_unmasked(call: SoftmaxCall) -> bool:
    """True if every query sees every key: implementations with explicit weights do not support masks."""
    return call.key_mask is None and not call.mixer.causal


def has_few_queries(call: SoftmaxCall) -> bool:
    """True if keys and values are one tensor, with fewer queries than its width.

    `read_softmax` makes such calls: H times the number of queries, and the model width.
    """
    is_few = call.k is call.v and call.q.shape[-2] < call.q.shape[-1]
    return is_few and is_unmasked(call) and num_weights(call) <= call.mixer.limits.most_weights


def can_keep_weights(call: SoftmaxCall) -> bool:
    """True if there are enough weights to outweigh call overhead, and few enough to keep in memory."""
    limits = call.mixer.limits
    return is_unmasked(call) and max(1, limits.fewest_weights) <= num_weights(call) <= limits.most_weights


def is_short(call: SoftmaxCall) -> bool:
    """True if explicit weights in fp32 are faster than torch's kernel."""
    is_computed_in_fp32 = is_fp32(call) or is_half_faster_in_fp32(call)
    return is_computed_in_fp32 and most_tokens(call) <= call.mixer.limits.explicit_tokens


SOFTMAX = (
    Route(
        lambda call: is_transformed(),
        "explicit weights: inside a transform of torch.func or in forward mode, which torch's kernel does not support",
        lambda call: call.mixer.explicit(call.q, call.k, call.v, call.key_mask),
    ),
    Route(is_not_eager_cpu, "torch's fused kernel: not an eager call on the CPU", direct),
    Route(needs_no_gradient, "torch's fused kernel: inference", direct),
    Route(
        lambda call: has_few_queries(call) and (is_fp32(call) or is_bf16(call)),
        "explicit weights: fewer queries (of all heads) than the width of a token",
        lambda call: explicit_softmax.attend_few_queries(call.q, call.k, call.v),
    ),
    Route(
        lambda call: has_few_queries(call) and is_half_faster_in_fp32(call),
        "explicit weights in fp32: fewer queries (of all heads) than the width of a token, in half precision",
        lambda call: in_full_precision(explicit_softmax.attend_few_queries, call.q, call.k, call.v),
    ),
    Route(
        lambda call: can_keep_weights(call) and is_bf16(call),
        "explicit weights in bf16, which this CPU supports: training with few enough weights to keep",
        lambda call: explicit_softmax.attend_in_bf16(call.q, call.k, call.v, call.mixer.limits),
    ),
    Route(
        lambda call: can_keep_weights(call) and is_short(call),
        "explicit weights in fp32: training a short sequence",
        lambda call: in_full_precision(explicit_softmax.attend_in_fp32, call.q, call.k, call.v, call.mixer.limits),
    ),
    Route(
        is_half_faster_in_fp32,
        "torch's fused kernel in fp32: its backward is slower in half precision",
        lambda call: in_full_precision(call.mixer.direct, call.q, call.k, call.v, call.key_mask),
    ),
    Route(
        always,
        "torch's fused kernel: no faster implementation applies (fp64, masked, causal, a long sequence, or too few or "
        "too many weights)",
        direct,
    ),
)


def can_read_tokens(call: ReadCall) -> bool:
    """True if projecting all keys and values would be more work than attention: fewer queries than the head width."""
    knows_forward = type(call.mixer).forward is call.formula.forward  # type: ignore[attr-defined]
    is_few = call.q.shape[-2] < call.q.shape[-1] and not call.mixer.causal and call.tokens.x.shape[1] > 0
    return not is_not_eager_cpu(call) and knows_forward and is_few


def has_many_key_features(call: ReadCall) -> bool:
    """True if there are enough key features to compute them in blocks."""
    features = call.q.shape[:2].numel() * call.tokens.x.shape[1] * call.mixer.kernel.features
    return features > call.mixer.limits.few_feature_elements


def read_linear(call: ReadCall) -> Tensor:
    """Computes the weights from projected keys, mixes the tokens with them, and projects the result to values. If a row
    of weights would vanish, projects all keys and values.
    """
    mixer, q, k = call.mixer, call.q, call.tokens.keys()
    in_bf16 = uses_bf16(LinearCall(mixer, mixer.kernel, q, k, k, None))
    dtype = torch.bfloat16 if in_bf16 else widened(q.dtype)
    out = few_queries.read(q, k.to(dtype), call.tokens, mixer.kernel, mixer.limits)
    return read_projected(call) if out is None else out


def read_softmax(call: ReadCall) -> Tensor:
    """Attention over the tokens themselves, with the projections folded into the queries."""
    q, x = folded_softmax.fold(call.q, call.tokens)
    # Not a call of the mixer: folded queries have the width of the model, not that of a head.
    return folded_softmax.unfold(call.mixer.forward(q, x, x), call.q, call.tokens)


def explain_folded(call: ReadCall) -> str:
    """The reason for the implementation that `read_softmax` calls through `forward`."""
    q, x = folded_softmax.fold(call.q, call.tokens)
    return call.mixer.explain(q, x, x)


def read_projected(call: ReadCall) -> Tensor:
    """Projects all keys and values, then calls `forward`."""
    return call.mixer(call.q, *call.tokens.keys_and_values())


def explain_projected(call: ReadCall) -> str:
    """The reason for the implementation that `read_projected` calls through `forward`."""
    return call.mixer.explain(call.q, *call.tokens.keys_and_values())


PROJECTED = Route(always, "keys and values projected", read_projected, explain_projected)
READ_LINEAR = (
    Route(
        lambda call: can_read_tokens(call) and has_many_key_features(call),
        "weights first, tokens mixed before the value projection: fewer queries than the head width",
        read_linear,
    ),
    PROJECTED,
)
READ_SOFTMAX = (
    Route(can_read_tokens, "projections folded: fewer queries than the head width", read_softmax, explain_folded),
    PROJECTED,
)
