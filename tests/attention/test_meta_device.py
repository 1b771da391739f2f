"""Devices other than the CPU: mixers use the direct form, which forces no device sync and compiles as one graph.

On the `meta` device, tensors have no values: `.item()`, branching on a value and copying to the CPU raise errors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
import torch
from torch import Tensor

from favorit.attention import LOCALS, Attention, Kernel, Linear, Mixer, cpu, route
from favorit.attention.cpu.limits import Limits
from favorit.attention.mixer import UnprojectedTokens
from favorit.selftest import cases
from favorit.selftest.inputs import BATCH, HEADS, assert_close, builder, gradients, has_causal, tensors

TOKENS, WIDTH, QUERIES = 70, 8, 3
SPECS = [spec for table in (cases.MIXERS, cases.RAW) for case in table.values() for spec in case.specs]
# On the CPU, these limits force blocks, bf16 products, few queries or explicit weights.
LIMITS = Limits(one_thread=0, few_feature_elements=0, fewest_weights=0, bf16_products=True)


def meta_mixer(spec: str, causal: bool = False, dtype: torch.dtype = torch.float32) -> Mixer:
    return builder(spec, LIMITS)(head_dim=WIDTH, tokens=TOKENS, causal=causal).to("meta", dtype)


def meta_tensors(dtype: torch.dtype = torch.float32, n: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    return tensors(n, WIDTH, n_keys=TOKENS, dtype=dtype, device="meta")


def meta_tokens() -> UnprojectedTokens:
    shapes = (BATCH, TOKENS, 10), (2, HEADS, WIDTH, 10), (2, HEADS, WIDTH)
    x, weight, bias = (torch.empty(shape, device="meta", requires_grad=True) for shape in shapes)
    return UnprojectedTokens(x, weight, bias)


def run_backward(out: Tensor, *inputs: Tensor) -> None:
    """Runs backward and asserts that gradients are on the meta device and have the shapes of the inputs."""
    found = torch.autograd.grad(out.sum(), inputs, allow_unused=True)
    for x, gradient in zip(inputs, found, strict=True):
        assert gradient is None or (gradient.is_meta and gradient.shape == x.shape)


@contextmanager
def functions_called(folder: str) -> Iterator[set[str]]:
    """Collects the functions of a folder that this thread calls inside the context."""
    found: set[str] = set()

    def listen(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            found.add(frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)

    sys.setprofile(listen)
    try:
        yield found
    finally:
        sys.setprofile(None)


CPU_FOLDER = cpu.__path__[0]


@pytest.mark.parametrize("spec", SPECS)
def test_mixer_runs_on_meta_without_cpu_code(spec: str) -> None:
    """Forward and backward: plain, masked and causal, in fp32 and bf16, while autocast is on for another device."""
    mask = torch.empty(BATCH, TOKENS, dtype=torch.bool, device="meta")
    is_causal = has_causal(builder(spec))
    calls = (False, None, torch.float32), (False, mask, torch.bfloat16), (is_causal, mask, torch.float32)
    with functions_called(CPU_FOLDER) as called:
        for causal, key_mask, dtype in calls:
            mixer, (q, k, v) = meta_mixer(spec, causal, dtype), meta_tensors(dtype)
            with torch.autocast("cpu", dtype=torch.float16):
                out = mixer(q, k, v, key_mask=key_mask)
            assert out.is_meta
            assert (out.shape, out.dtype) == (q.shape, dtype)
            run_backward(out, q, k, v, *mixer.parameters())
    assert mixer.weights(q, k, key_mask=mask).shape == (BATCH, HEADS, TOKENS, TOKENS)
    assert not called


@pytest.mark.parametrize("spec", SPECS)
def test_read_runs_on_meta_without_cpu_code(spec: str) -> None:
    for causal in {False, has_causal(builder(spec))}:
        mixer, q, tokens = meta_mixer(spec, causal), meta_tensors(n=QUERIES)[0], meta_tokens()
        with functions_called(CPU_FOLDER) as called:
            out = mixer.read(q, tokens)
            run_backward(out, q, *(part for part in tokens if part is not None), *mixer.parameters())
        assert out.shape == q.shape
        assert not called


def test_calls_of_cpu_code_are_recorded() -> None:
    """On the CPU, the same calls run functions of this folder, so the two tests above are able to fail."""
    q, k, v = tensors(TOKENS, WIDTH)
    for spec in ("relu(m=8)", "softmax"):
        with functions_called(CPU_FOLDER) as called:
            builder(spec, LIMITS)(head_dim=WIDTH, tokens=TOKENS)(q, k, v)
        assert called


@pytest.mark.parametrize("spec", ["softmax", "relu(m=24)", "favor(m=24)", "sincos(m=24)", "elu(raw=True)", "mixture"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries", [QUERIES, TOKENS])
def test_call_on_another_device_uses_the_direct_form(spec: str, dtype: torch.dtype, queries: int) -> None:
    """`forward` uses the row of the direct form, `read` projects keys and values, and `explain` reports this."""
    for causal in (False, True):
        mixer = meta_mixer(spec, causal, dtype)
        q, k, v = meta_tensors(dtype, queries)
        table = route.LINEAR if isinstance(mixer, Linear) else route.SOFTMAX
        (row,) = (row for row in table if row.applies is route.is_not_eager_cpu)
        assert row.implementation is route.direct
        assert mixer.explain(q, k, v) == row.reason
        assert mixer.explain(q, k, k) == row.reason
        assert mixer.explain_read(q, meta_tokens()) == f"{route.PROJECTED.reason}; {row.reason}"


@pytest.mark.parametrize("spec", ["favor(m=8)", "relu(m=8)", "sincos(m=8)"])
def test_random_features_are_redrawn_on_meta(spec: str) -> None:
    for module in meta_mixer(spec).train().modules():
        if isinstance(module, Kernel):
            module.redraw(1)
            assert all(buffer.is_meta for buffer in module.buffers())


@pytest.mark.parametrize("local", [None, *LOCALS])
@pytest.mark.parametrize("num_queries", [None, 1])
def test_attention_layer_runs_on_meta(local: str | None, num_queries: int | None) -> None:
    layer = Attention(16, 2, "relu(m=8)", "rope2d", qk_norm=True, local=local, seed=0).to("meta")
    x = torch.empty(BATCH, 12, 16, device="meta", requires_grad=True)
    out = layer(x, (4, 3), num_queries=num_queries)
    assert out.shape == (BATCH, num_queries or 12, 16)
    run_backward(out, x, *layer.parameters())


def take_item(x: Tensor) -> Tensor:
    return x / x.abs().max().item()


def branch_on_a_value(x: Tensor) -> Tensor:
    return x if x.abs().max() < 1 else x.tanh()


def copy_to_the_cpu(x: Tensor) -> Tensor:
    return x.cpu().to(x.device)


def read_a_list(x: Tensor) -> Tensor:
    return x * x.amax((0, 1, 2)).tolist()[0]


def select_by_value(x: Tensor) -> Tensor:
    return x * x[x > 0].mean()


class _Wrong(Kernel):
    """relu(x), after an operation that waits for the device."""

    def __init__(self, mistake: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mistake = mistake
        self.features = WIDTH

    def queries(self, q: Tensor) -> Tensor:
        return torch.relu(self.mistake(q))

    def keys(self, k: Tensor) -> tuple[Tensor, None]:
        return torch.relu(k), None


@pytest.mark.parametrize("mistake", [take_item, branch_on_a_value, copy_to_the_cpu, read_a_list, select_by_value])
def test_kernel_that_reads_values_fails_on_meta(mistake: Callable[[Tensor], Tensor]) -> None:
    mixer = Linear(_Wrong(mistake))
    assert mixer(*tensors(TOKENS, WIDTH)).isfinite().all()
    with pytest.raises((RuntimeError, NotImplementedError), match=r"[Mm]eta"):
        mixer(*meta_tensors())


@pytest.mark.parametrize(
    ("spec", "causal"),
    [("softmax", False), ("softmax", True), ("relu(m=8)", False), ("favor(m=8)", False), ("favor(m=8)", True)],
)
def test_direct_form_compiles_as_one_graph(spec: str, causal: bool) -> None:
    """Outputs and gradients equal those of the eager call."""
    mixer, inputs = builder(spec, LIMITS)(head_dim=WIDTH, tokens=TOKENS, causal=causal), tensors(TOKENS, WIDTH)
    torch.compiler.reset()
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    mine, twin = compiled(*inputs), mixer(*inputs)
    assert_close(mine, twin, 2e-5)
    for gradient, expected in zip(gradients(mine, *inputs), gradients(twin, *inputs), strict=True):
        assert_close(gradient, expected, 4e-4)


def test_kernel_that_branches_on_a_value_does_not_compile_as_one_graph() -> None:
    torch.compiler.reset()
    compiled = torch.compile(Linear(_Wrong(branch_on_a_value)), fullgraph=True, backend="aot_eager")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(*tensors(TOKENS, WIDTH))
