"""Invariants of mixers for masks and for empty, undefined and extreme inputs: functions of a builder and a device."""

from __future__ import annotations

import torch

from favorit.attention.mixer import UnprojectedTokens
from favorit.selftest.devices import CPU, Device
from favorit.selftest.inputs import BATCH, HEADS, Build, gradients, has_causal


def empty_batch_passes(build: Build, device: Device = CPU) -> None:
    """A batch without images works. With several processes, one may get no images at the end of an epoch."""
    for causal in {False, has_causal(build)}:
        mixer = build(head_dim=4, tokens=9, causal=causal)
        inputs = [x[:0].detach().requires_grad_() for x in device.tensors(9, 4)]
        out = mixer(*inputs)
        assert out.shape == (0, HEADS, 9, 4)
        assert all(gradient.shape == x.shape for x, gradient in zip(inputs, gradients(out, *inputs), strict=True))


def no_keys_give_zeros(build: Build, device: Device = CPU) -> None:
    """Without keys, outputs are zero, forward equals the explicit weights, and gradients have the right shapes."""
    for causal in {False, has_causal(build)}:
        for batch, n_queries in ((BATCH, 5), (BATCH, 0), (0, 5)):
            mixer = build(head_dim=4, tokens=5, causal=causal)
            q, k, v = (x.detach() for x in device.tensors(5, 4))
            q, k, v = (x.requires_grad_() for x in (q[:batch, :, :n_queries], k[:batch, :, :0], v[:batch, :, :0]))
            out = mixer(q, k, v)
            assert torch.equal(out, torch.zeros_like(q))
            assert torch.equal(mixer.weights(q, k) @ v, out)
            for x, gradient in zip(
                (q, k, v), torch.autograd.grad(out.sum(), (q, k, v), allow_unused=True), strict=True
            ):
                assert gradient is None or torch.equal(gradient, torch.zeros_like(x))


def mask_equals_removal(build: Build, device: Device = CPU) -> None:
    """Masking a key equals removing it, even if the key is large: outputs and gradients."""
    n, kept = 70, 41
    q, k, v = device.tensors(n, 16)
    keep = torch.randperm(n, generator=torch.Generator().manual_seed(4))[:kept].sort().values.to(device.type)
    mask = torch.zeros(BATCH, n, dtype=torch.bool, device=device.type)
    mask[:, keep] = True
    large = torch.where(mask[:, None, :, None], k, 40 * k)
    mixer = build(head_dim=16, tokens=n)
    masked, removed = mixer(q, large, v, key_mask=mask), mixer(q, k[:, :, keep], v[:, :, keep])
    device.assert_close(masked, removed, 1e-5)
    device.assert_close(mixer.weights(q, large, key_mask=mask) @ v, masked, 1e-5)
    for actual, expected in zip(gradients(masked, q, v), gradients(removed, q, v), strict=True):
        device.assert_close(actual, expected, 1e-4)


def all_masked_gives_zeros(build: Build, device: Device = CPU) -> None:
    """If all keys of an image are masked, its outputs and gradients are zero; forward equals the weights."""
    mask = torch.ones(BATCH, 9, dtype=torch.bool, device=device.type)
    mask[0] = False
    for length in (1.0, 1e3):
        for causal in {False, has_causal(build)}:
            q, k, v = (length * x.detach() for x in device.tensors(9, 16))
            q, k, v = q.requires_grad_(), k.requires_grad_(), (v / length).detach().requires_grad_()
            mixer = build(head_dim=16, tokens=9, causal=causal)
            out = mixer(q, k, v, key_mask=mask)
            device.assert_close(out, mixer.weights(q, k, key_mask=mask) @ v, 1e-5)
            device.assert_close(out[1:], mixer(q[1:], k[1:], v[1:]), 1e-5)
            assert not out[0].any()
            for gradient in gradients(out, q, k, v):
                assert gradient.isfinite().all()
                assert not gradient[0].any()


def masked_keys_may_be_undefined(build: Build, device: Device = CPU) -> None:
    """NaN, infinite and huge masked keys and values change no output and no gradient, and their gradients are zero."""
    n = 70
    mask = torch.rand(BATCH, n, generator=torch.Generator().manual_seed(5)) < 0.7
    mask[0, 0], mask[1, 0] = True, False
    mask = mask.to(device.type)
    kept = mask[:, None, :, None]
    q, *_ = device.tensors(n, 16)
    for causal in {False, has_causal(build)}:
        mixer = build(head_dim=16, tokens=n, causal=causal)
        wanted = tuple(mixer.parameters())
        for dtype in (None, *device.half):
            results = []
            for padding in (0.0, torch.nan, torch.inf, -torch.inf, 1e38):
                k, v = (torch.where(kept, x.detach(), padding).requires_grad_() for x in device.tensors(n, 16)[1:])
                with torch.autocast(device.type, dtype=dtype or device.half[0], enabled=dtype is not None):
                    out = mixer(q, k, v, key_mask=mask)
                found = gradients(out, q, k, v, *wanted)
                for x, gradient in zip((k, v), found[1:3], strict=True):
                    assert not gradient[~kept.expand_as(x)].any()
                results.append([out, mixer.weights(q, k, key_mask=mask), *found])
            for other in results[1:]:
                for mine, expected in zip(other, results[0], strict=True):
                    assert torch.equal(mine, expected)


def finite_at_any_norm(build: Build, device: Device = CPU) -> None:
    """Outputs and gradients are finite for norms from 1e-4 to 1e4, in fp32 and under bf16 and fp16 autocast."""
    norms = (1e-4, 1.0, 1e2, 1e4)
    # Projections of tokens [k, v]: the first half of a token is the key of every head, the second half its value.
    halves = torch.eye(32, device=device.type).view(2, 1, 16, 32).expand(2, HEADS, 16, 32)
    for dtype in (None, *device.half):
        for norm_q in norms:
            for norm_k in norms:
                for causal in {False, has_causal(build)}:
                    mixer = build(head_dim=16, tokens=65, causal=causal)
                    q, k, v = device.tensors(65, 16)
                    q_scaled, k_scaled = (
                        norm * x / x.norm(dim=-1, keepdim=True) for norm, x in ((norm_q, q), (norm_k, k))
                    )
                    with torch.autocast(device.type, dtype=dtype or device.half[0], enabled=dtype is not None):
                        out = mixer(q_scaled, k_scaled, v)
                        read = mixer.read(
                            q_scaled[:, :, :1],
                            UnprojectedTokens(torch.cat([k_scaled[:, 0], v[:, 0]], -1), halves, None),
                        )
                    where = f"autocast {dtype}, |q| {norm_q}, |k| {norm_k}, causal {causal}"
                    assert out.isfinite().all(), where
                    assert read.isfinite().all(), f"read, {where}"
                    both = out.float().sum() + read.float().sum()
                    for g in torch.autograd.grad(both, (q, k, v, *mixer.parameters()), allow_unused=True):
                        assert g is None or g.isfinite().all(), f"gradient, {where}"


def finite_in_the_stated_range(build: Build, device: Device = CPU) -> None:
    """Outputs and gradients are finite for norms of q and k up to 1e15 and of v up to 100."""
    for causal in {False, has_causal(build)}:
        mixer = build(head_dim=16, tokens=65, causal=causal)
        for norm_q, norm_k in ((1e15, 1e15), (1e15, 1e-15), (1e-15, 1e15), (1e-15, 1e-15)):
            q, k, v = (
                (norm * x / x.norm(dim=-1, keepdim=True)).detach().requires_grad_()
                for norm, x in zip((norm_q, norm_k, 100), device.tensors(65, 16), strict=True)
            )
            for x in (mixer(q, k, v), *gradients(mixer(q, k, v), q, k, v, *mixer.parameters())):
                assert x.isfinite().all(), f"|q| {norm_q}, |k| {norm_k}, causal {causal}"
