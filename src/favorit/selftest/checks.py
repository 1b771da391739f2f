"""Invariants of mixers as functions of a builder and a device. The tests run them on the library, which must pass, and
on known wrong implementations (`tests/mutants.py`), which must fail.

A failing check raises AssertionError. Tolerances are for the CPU; `Device` widens them for other devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from favorit.attention.mixer import UnprojectedTokens
from favorit.selftest.cases import MIXERS, RAW, Case
from favorit.selftest.devices import CPU, Device
from favorit.selftest.extremes import (
    all_masked_gives_zeros,
    empty_batch_passes,
    finite_at_any_norm,
    finite_in_the_stated_range,
    mask_equals_removal,
    masked_keys_may_be_undefined,
    no_keys_give_zeros,
)
from favorit.selftest.inputs import BATCH, HEADS, Build, gradients, has_causal

TOKENS = (1, 49, 63, 65, 197)
WIDTHS = (1, 3, 16, 64)


def weights_times_value_is_forward(build: Build, device: Device = CPU) -> None:
    """forward equals weights @ v: values, and gradients of inputs and parameters."""
    for dtype, tolerance in device.tolerances.items():
        for n in TOKENS:
            for d in WIDTHS:
                mixer = build(head_dim=d, tokens=n).to(dtype)
                q, k, v = device.tensors(n, d, dtype=dtype)
                wanted = (q, k, v, *mixer.parameters())
                fast, slow = mixer(q, k, v), mixer.weights(q, k) @ v
                assert fast.dtype == dtype
                device.assert_close(fast, slow, tolerance)
                for actual, expected in zip(gradients(fast, *wanted), gradients(slow, *wanted), strict=True):
                    device.assert_close(actual, expected, 20 * tolerance)


def other_number_of_queries(build: Build, device: Device = CPU) -> None:
    """Nq and Nk may differ."""
    for causal in (False, True):
        for n_queries, n_keys in ((1, 65), (63, 65), (130, 65)):
            mixer = build(head_dim=4, tokens=n_keys, causal=causal and has_causal(build))
            q, k, v = device.tensors(n_queries, 4, n_keys=n_keys)
            assert mixer(q, k, v).shape == q.shape
            device.assert_close(mixer(q, k, v), mixer.weights(q, k) @ v, 2e-5)


def queries_are_independent(build: Build, device: Device = CPU) -> None:
    """The first queries alone give the same outputs and gradients as together with the other queries."""
    for causal in {False, has_causal(build)}:
        for n_queries in (1, 3):
            mixer = build(head_dim=4, tokens=65, causal=causal).to(device.widest)
            q, k, v = device.tensors(65, 4, dtype=device.widest)
            wanted = (q, k, v, *mixer.parameters())
            rows, alone = mixer(q, k, v)[..., :n_queries, :], mixer(q[..., :n_queries, :], k, v)
            device.assert_close(alone, rows, device.tolerances[device.widest])
            for actual, expected in zip(gradients(alone, *wanted), gradients(rows, *wanted), strict=True):
                device.assert_close(actual, expected, 100 * device.tolerances[device.widest])


def read_equals_forward(build: Build, device: Device = CPU) -> None:
    """`read` equals `forward` on projected keys and values, for fewer and for more queries than the head width: outputs
    and gradients.
    """
    for causal in {False, has_causal(build)}:
        for n_queries in (1, 3, 4, 65):
            for biased in (True, False):
                for dtype, tolerance in device.tolerances.items():
                    mixer = build(head_dim=4, tokens=65, causal=causal).to(dtype)
                    q = device.tensors(n_queries, 4, dtype=dtype)[0]
                    tokens = _unprojected(dtype, biased, device)
                    wanted = [x for x in (q, *tokens, *mixer.parameters()) if x is not None]
                    read, projected = mixer.read(q, tokens), mixer(q, *_projected(tokens))
                    assert read.dtype == dtype
                    device.assert_close(read, projected, tolerance)
                    for actual, expected in zip(gradients(read, *wanted), gradients(projected, *wanted), strict=True):
                        device.assert_close(actual, expected, 100 * tolerance)
                half = device.half[0]
                with torch.autocast(device.type, dtype=half):
                    under_autocast = mixer.read(q, tokens)
                bias = None if tokens.bias is None else tokens.bias.to(half)
                halved = UnprojectedTokens(tokens.x.to(half), tokens.weight.to(half), bias)
                for found in (under_autocast, mixer.to(half).read(q.to(half), halved)):
                    assert found.dtype == half
                    device.assert_close(found.float(), projected, 0.1)


def _unprojected(dtype: torch.dtype, biased: bool, device: Device) -> UnprojectedTokens:
    source = torch.Generator().manual_seed(7)
    shapes = (BATCH, 65, 10), (2, HEADS, 4, 10), (2, HEADS, 4)
    normal = (torch.randn(shape, generator=source, dtype=torch.float64) for shape in shapes)
    x, weight, bias = (part.to(dtype).to(device.type).requires_grad_() for part in normal)
    return UnprojectedTokens(x, weight, bias if biased else None)


def _projected(tokens: UnprojectedTokens) -> Tensor:
    """Keys and values (2,B,H,N,D), computed from their definition."""
    both = torch.einsum("bnc,khdc->kbhnd", tokens.x, tokens.weight)
    return both if tokens.bias is None else both + tokens.bias[:, None, :, None]


def inference_equals_training(build: Build, device: Device = CPU) -> None:
    """Inference gives the outputs of training and does not change its inputs, even with another implementation."""
    for causal in {False, has_causal(build)}:
        for n, d in ((5, 3), (65, 16), (197, 64)):
            mixer = build(head_dim=d, tokens=n, causal=causal)
            inputs = device.tensors(n, d)
            before = [x.detach().clone() for x in inputs]
            with torch.no_grad():
                out = mixer(*inputs)
            device.assert_close(out, mixer(*inputs), 1e-6)
            assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


def autocast_keeps_fp64(build: Build, device: Device = CPU) -> None:
    """Autocast does not change fp64, as in torch."""
    mixer = build(head_dim=4, tokens=9).double()
    q, k, v = device.tensors(9, 4, dtype=torch.float64)
    out = mixer(q, k, v)
    with torch.autocast(device.type, dtype=device.half[0]):
        under_autocast = mixer(q, k, v)
    assert under_autocast.dtype == torch.float64
    device.assert_close(under_autocast, out, 1e-12)


def rows_sum_to_one(build: Build, device: Device = CPU) -> None:
    """The weights of a query sum to one."""
    for n in TOKENS:
        w = build(head_dim=16, tokens=n).weights(*device.tensors(n, 16)[:2])
        device.assert_close(w.sum(-1), torch.ones_like(w[..., 0]), 1e-5)


def non_negative(build: Build, device: Device = CPU) -> None:
    """No weight is negative."""
    for n in TOKENS:
        assert build(head_dim=16, tokens=n).weights(*device.tensors(n, 16)[:2]).min() >= 0


def constant_value_passes(build: Build, device: Device = CPU) -> None:
    """If all values are equal, so are all outputs."""
    q, k, _ = device.tensors(65, 16)
    constant = torch.linspace(-3, 3, 16, device=device.type).expand_as(q)
    device.assert_close(build(head_dim=16, tokens=65)(q, k, constant), constant, 1e-5)


def single_token_is_its_value(build: Build, device: Device = CPU) -> None:
    """The output of a single token is its value."""
    q, k, v = device.tensors(1, 16)
    device.assert_close(build(head_dim=16, tokens=1)(q, k, v), v, 1e-6)


def permutation_equivariant(build: Build, device: Device = CPU) -> None:
    """Permuting the tokens permutes the outputs."""
    q, k, v = device.tensors(65, 16)
    order = torch.randperm(65, generator=torch.Generator().manual_seed(3)).to(device.type)
    mixer = build(head_dim=16, tokens=65)
    device.assert_close(mixer(q[:, :, order], k[:, :, order], v[:, :, order]), mixer(q, k, v)[:, :, order], 1e-5)


def batch_independent(build: Build, device: Device = CPU) -> None:
    """The output for an image does not depend on the other images of the batch, at any scale of their tokens."""
    q, k, v = device.tensors(65, 16)
    mixer = build(head_dim=16, tokens=65)
    for own, other in ((1, 50), (15, 0.01)):
        alone = mixer(q[:1], own * k[:1], v[:1])
        together = mixer(torch.cat([q[:1], other * q[1:]]), torch.cat([own * k[:1], other * k[1:]]), v)
        device.assert_close(together[:1], alone, 1e-6)


def state_round_trips(build: Build, device: Device = CPU) -> None:
    """The state dictionary contains everything the output depends on, including random features."""
    q, k, v = device.tensors(65, 16)
    one, other = build(head_dim=16, tokens=65, seed=0), build(head_dim=16, tokens=65, seed=1)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(q, k, v), other(q, k, v))


def same_seed_same_mixer(build: Build, device: Device = CPU) -> None:
    """Equal seeds give equal mixers."""
    q, k, v = device.tensors(65, 16)
    assert torch.equal(build(head_dim=16, tokens=65, seed=5)(q, k, v), build(head_dim=16, tokens=65, seed=5)(q, k, v))


def causal_equals_prefixes(build: Build, device: Device = CPU) -> None:
    """Row i of the causal form equals the bidirectional form on keys 0..i: outputs and gradients, across blocks."""
    n = 135
    causal, plain = build(head_dim=8, tokens=n, causal=True), build(head_dim=8, tokens=n)
    q, k, v = device.tensors(n, 8)
    fast = causal(q, k, v)
    slow = torch.cat([plain(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]) for i in range(n)], -2)
    device.assert_close(fast, slow, 2e-5)
    for actual, expected in zip(gradients(fast, q, k, v), gradients(slow, q, k, v), strict=True):
        device.assert_close(actual, expected, 5e-4)
    w = causal.weights(q, k)
    assert w.triu(1).abs().max() == 0
    device.assert_close(w @ v, fast, 2e-5)


def later_key_changes_nothing(build: Build, device: Device = CPU) -> None:
    """Replacing the last of many keys of norm 60 by one of norm 0.01 changes no earlier row, also within a block."""
    for n in (20, 90):
        mixer = build(head_dim=16, tokens=n, causal=True)
        q, k, v = device.tensors(n, 16)
        large = 60 * k / k.norm(dim=-1, keepdim=True)
        late = torch.cat([large[:, :, :-1], 0.01 * k[:, :, -1:] / k[:, :, -1:].norm(dim=-1, keepdim=True)], -2)
        before, after = mixer(q, large, v)[:, :, :-1], mixer(q, late, v)[:, :, :-1]
        device.assert_close(after, before, 1e-6)
        plain = build(head_dim=16, tokens=n)
        device.assert_close(after[:, :, -1:], plain(q[:, :, n - 2 : n - 1], large[:, :, :-1], v[:, :, :-1]), 1e-4)


Check = Callable[..., None]

MIXER_CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        weights_times_value_is_forward,
        other_number_of_queries,
        queries_are_independent,
        read_equals_forward,
        inference_equals_training,
        empty_batch_passes,
        no_keys_give_zeros,
        autocast_keeps_fp64,
        rows_sum_to_one,
        non_negative,
        constant_value_passes,
        single_token_is_its_value,
        permutation_equivariant,
        batch_independent,
        mask_equals_removal,
        all_masked_gives_zeros,
        masked_keys_may_be_undefined,
        finite_at_any_norm,
        finite_in_the_stated_range,
        state_round_trips,
        same_seed_same_mixer,
        causal_equals_prefixes,
        later_key_changes_nothing,
    )
}

# Not run on a device without fp64.
NEEDS_FP64 = {autocast_keeps_fp64.__name__}


class RequiredCheck(NamedTuple):
    """A check that must pass: the registered name, its case, one of its specs and the name of the check."""

    mixer: str
    case: Case
    spec: str
    check: str


REQUIRED_CHECKS = [
    RequiredCheck(name, case, spec, check)
    for table in (MIXERS, RAW)
    for name, case in table.items()
    for spec in case.specs
    for check in MIXER_CHECKS
    if check not in case.excused
]
