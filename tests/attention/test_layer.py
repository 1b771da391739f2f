"""The attention layer: outputs, gradients, skipped projections, and rejected arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from favorit import Attention, FavoritError, build_mixer
from favorit.attention.cpu.limits import Limits
from favorit.attention.linformer import Linformer
from favorit.grids import Grid
from favorit.position import Absolute, Position
from favorit.selftest.inputs import assert_close, builder, gradients, tensors


def test_attention_equals_its_definition() -> None:
    """Outputs and gradients equal a reference implementation of the projections, heads and output."""
    torch.manual_seed(0)
    layer = Attention(12, 3, mixer="softmax", head_dim=5)
    x = torch.randn(2, 6, 12, requires_grad=True)
    q, k, v = (part.reshape(2, 6, 3, 5).transpose(1, 2) for part in layer.qkv(x).split(15, -1))
    slow = layer.out(((q @ k.mT / 5**0.5).softmax(-1) @ v).transpose(1, 2).reshape(2, 6, 15))
    fast = layer(x, grid=(2, 3))
    assert_close(fast, slow, 1e-6)
    for mine, twin in zip(
        gradients(fast, x, *layer.parameters()), gradients(slow, x, *layer.parameters()), strict=True
    ):
        assert_close(mine, twin, 1e-5)


@settings(max_examples=30)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    prefix=st.integers(0, 2),
    mixer=st.sampled_from(["softmax", "relu(m=6)", "favor(m=6)", "uniform", "none", "mixture"]),
    position=st.sampled_from(["none", "rope2d", "irpe_gate", "string_gate", "rope2d+irpe_gate"]),
)
def test_layer_at_any_grid_and_prefix_is_finite_with_normalized_weights(
    rows: int, columns: int, prefix: int, mixer: str, position: str
) -> None:
    layer = Attention(16, 4, mixer=mixer, position=position, qk_norm=True, local="dwconv(3)")
    x = torch.randn(2, prefix + rows * columns, 16)
    out = layer(x, grid=(rows, columns), prefix=prefix)
    assert out.shape == x.shape
    assert out.isfinite().all()
    w = layer.weights(x, grid=(rows, columns), prefix=prefix)
    assert w.shape == (2, 4, x.shape[1], x.shape[1])
    assert_close(w.sum(-1), torch.ones(2, 4, x.shape[1]), 1e-5)


def read_first_token(layer: Attention) -> tuple[torch.Tensor, int]:
    """The output of the first token, checked against the layer's output for all tokens, and its FLOPs."""
    x = torch.randn(2, 7, 16, dtype=torch.float64, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        read = layer(x, grid=(2, 3), prefix=1, num_queries=1)
    whole = layer(x, grid=(2, 3), prefix=1)[:, :1]
    assert_close(read, whole, 1e-12)
    for mine, twin in zip(
        gradients(read, x, *layer.parameters()), gradients(whole, x, *layer.parameters()), strict=True
    ):
        assert_close(mine, twin, 1e-11)
    return read, counter.get_total_flops()


# The FLOPs of projecting all tokens to q, k and v of width 16.
ALL_PROJECTED = 2 * 2 * 7 * 16 * 3 * 16


def test_reading_one_token_skips_the_projections_of_the_others() -> None:
    layer = Attention(16, 2).double()
    assert read_first_token(layer)[1] < ALL_PROJECTED / 2
    assert read_first_token(Attention(16, 2, position="learned", qkv_bias=False).double())[1] < ALL_PROJECTED / 2
    assert read_first_token(Attention(16, 2, "relu(m=8)").double())[1] > ALL_PROJECTED / 2, "features need keys"
    assert "folded" in layer.explain(2, 7, num_queries=1)
    assert "folded" not in layer.explain(2, 7)


def doubled(base: type[Position]) -> Position:
    """A custom position that changes queries."""

    class Doubled(base):  # type: ignore[misc, valid-type]
        def qk(self, q: torch.Tensor, k: torch.Tensor, grid: Grid, prefix: int) -> tuple[torch.Tensor, torch.Tensor]:
            return 2 * q, k

    return Doubled()


def assert_all_tokens_are_projected(layer: Attention) -> None:
    """The output of the first token is right, and q, k and v of all tokens are computed."""
    assert read_first_token(layer.double())[1] > ALL_PROJECTED
    assert "folded" not in layer.explain(2, 7, num_queries=1)


@pytest.mark.parametrize(
    "options",
    [
        dict(qk_norm=True),
        dict(position="learned+rope2d"),
        dict(position=doubled(Position)),
        dict(position=doubled(Absolute)),
        dict(local="dwconv(3)"),
    ],
    ids=str,
)
def test_all_tokens_are_projected_if_something_acts_on_q_k_or_v(options: dict[str, Any]) -> None:
    assert_all_tokens_are_projected(Attention(16, 2, **options))


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
@pytest.mark.parametrize("part", ["qkv", "mixer", "norm_q", "norm_k"])
def test_hooks_get_q_k_and_v_of_all_tokens(part: str, kind: str) -> None:
    layer, calls = Attention(16, 2), []
    getattr(layer.get_submodule(part), f"register_{kind}")(lambda module, *tensors: calls.append(tensors) or None)
    assert_all_tokens_are_projected(layer)
    assert calls


def test_replaced_submodules_are_called() -> None:
    class Adapted(torch.nn.Linear):
        """A linear layer with another forward, as adapters of pretrained models have."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    adapted, wrapped, normed = Attention(16, 2), Attention(16, 2), Attention(16, 2)
    adapted.qkv = Adapted(16, 48)
    project = wrapped.qkv.forward
    wrapped.qkv.forward = lambda x: 3 * project(x)  # type: ignore[method-assign]
    normed.norm_k = torch.nn.LayerNorm(8)
    for layer in (adapted, wrapped, normed):
        assert_all_tokens_are_projected(layer)


@pytest.mark.parametrize("spec", ["softmax", "relu(m=8)"])
def test_overridden_forward_of_a_mixer_is_called(spec: str) -> None:
    mixer = build_mixer(spec, heads=2, head_dim=8)
    mixer.limits = Limits(few_feature_elements=0)

    class Sharper(type(mixer)):  # type: ignore[misc]
        def forward(self, q: torch.Tensor, *others: torch.Tensor, **options: Any) -> torch.Tensor:
            return super().forward(3 * q, *others, **options)

    layer = Attention(16, 2, mixer)
    assert read_first_token(layer.double())[1] < ALL_PROJECTED
    mixer.__class__ = Sharper
    assert "folded" not in layer.explain(2, 7, num_queries=1)
    read_first_token(layer)


def test_local_convolution_sees_the_grid_and_not_the_prefix() -> None:
    """Only one token is nonzero. It changes its neighbors on the grid, but not the class token."""
    torch.manual_seed(0)
    layer = Attention(8, 2, mixer="none", local="dwconv(3)", qkv_bias=False, out_bias=False)
    layer.local.filter.bias.data.zero_()
    x = torch.zeros(1, 1 + 12, 8)
    x[0, 1 + 5] = 1.0  # row 1, column 1 of a 3 x 4 grid
    touched = layer(x, grid=(3, 4), prefix=1)[0].abs().sum(-1) > 0
    assert touched[0] == 0
    assert touched[1:].reshape(3, 4).tolist() == [[True, True, True, False]] * 3


def test_attention_of_a_bf16_model_is_finite_and_returns_bf16() -> None:
    for mixer in ("learned", "mixture", "relu(m=8)", "favor(m=8)", "softmax", "uniform", "none"):
        layer = Attention(16, 4, mixer=mixer).bfloat16()
        out = layer(torch.randn(2, 6, 16, dtype=torch.bfloat16), grid=(2, 3))
        assert out.dtype == torch.bfloat16
        assert out.isfinite().all()


def test_qk_norm_is_computed_in_full_precision_under_autocast() -> None:
    norm = Attention(16, 4, qk_norm=True).norm_q
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 4, 6, 4, dtype=torch.bfloat16)
    exact = norm(x.float()).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(norm(x), exact)


@pytest.mark.parametrize("share", ["none", "kv", "heads"])
def test_linformer_with_the_identity_as_projection_is_softmax(share: str) -> None:
    n = 9
    mixer = build_mixer(f"linformer(k={n - 1}, share={share})", heads=2, head_dim=16, tokens=n, prefix=1)
    assert isinstance(mixer, Linformer)
    for projection in mixer.parameters():
        projection.data.copy_(torch.eye(n - 1))
    q, k, v = tensors(n, 16)
    fast, exact = mixer(q, k, v), build_mixer("softmax", heads=2, head_dim=16)(q, k, v)
    assert_close(fast, exact, 1e-6)
    for mine, twin in zip(gradients(fast, q, k, v), gradients(exact, q, k, v), strict=True):
        assert_close(mine, twin, 1e-5)


@pytest.mark.parametrize(("share", "matrices"), [("none", 2 * 3), ("heads", 2), ("kv", 1)])
def test_linformer_shares_its_projections(share: str, matrices: int) -> None:
    mixer = build_mixer(f"linformer(k=4, share={share})", heads=3, head_dim=8, tokens=10, prefix=1)
    assert sum(p.numel() for p in mixer.parameters()) == matrices * 4 * 9


def test_linformer_does_not_project_prefix_tokens() -> None:
    """The class token keeps its key and value, in addition to the projected ones."""
    mixer = build_mixer("linformer(k=2)", heads=2, head_dim=8, tokens=6, prefix=1)
    q, k, v = tensors(6, 8)
    k = k.detach().clone()
    k[:, :, 0] = 100 * q[:, :, 3].detach()
    assert_close(mixer(q, k, v)[:, :, 3], v[:, :, 0], 1e-4)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("sofmax", ["mixer", "sofmax", "softmax"]),
        ("relu(n=4)", ["parameter of relu", "'n'", "m"]),
        ("relu(m=0)", ["m=0", "at least 1"]),
        ("relu(m=-3)", ["m=-3", "at least 1"]),
        ("relu(m=2.5)", ["m=2.5", "integer"]),
        ("relu(m=many)", ["m=many", "integer"]),
        ("relu(learned=True)", ["learned", "m=128"]),
        ("relu(causal=perhaps)", ["causal=perhaps", "True or False"]),
        ("favor(m=7, features=hyperbolic)", ["m=7", "hyperbolic", "even"]),
        ("favor(features=wavy)", ["features=wavy", "positive", "hyperbolic"]),
        ("favor(heads=2)", ["parameter of favor", "heads"]),
        ("linformer(causal=True)", ["causal=True", "softmax"]),
        ("linformer(share=some)", ["share=some", "kv"]),
        ("elu(alpha=-1)", ["alpha=-1", "above 0"]),
        ("relu(m=4", ["relu(m=4", "name(key=value"]),
    ],
)
def test_invalid_mixer_is_rejected_with_a_message_of_valid_values(spec: str, words: list[str]) -> None:
    with pytest.raises(FavoritError) as error:
        build_mixer(spec, heads=2, head_dim=8, tokens=5)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("position", ["none", "learned", "sincos2d", "rope2d", "irpe_gate", "string_gate"])
def test_position_built_without_prefix_accepts_one(position: str) -> None:
    assert Attention(16, 4, position=position)(torch.randn(2, 7, 16), grid=(2, 3), prefix=1).shape == (2, 7, 16)


@pytest.mark.parametrize("position", ["none", "learned", "rope2d", "irpe_gate"])
def test_tokens_without_a_grid_lie_in_one_row(position: str) -> None:
    layer, x = Attention(16, 4, position=position, local="dwconv(3)"), torch.randn(2, 7, 16)
    assert torch.equal(layer(x), layer(x, grid=(1, 7)))
    assert torch.equal(layer(x, prefix=1), layer(x, grid=(1, 6), prefix=1))


def test_gates_are_computed_in_full_precision_under_autocast() -> None:
    layer = Attention(16, 4, position="string_gate")
    gate = layer.position.parts[0]
    torch.nn.init.normal_(gate.projection)
    q = torch.ones(1, 4, 6, 4)
    exact = gate.qk(q, q, (2, 3), 0)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(gate.qk(q, q, (2, 3), 0)[0], exact)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (dict(heads=0), "heads=0"),
        (dict(heads="4"), "heads='4'"),
        (dict(head_dim=-4), "head_dim=-4"),
        (dict(head_dim=0), "head_dim=0"),
        (dict(mixer=3), "not 3"),
        (dict(position=3), "not 3"),
    ],
)
def test_invalid_layer_arguments_are_named(values: dict[str, object], words: str) -> None:
    with pytest.raises(FavoritError, match=words):
        Attention(**{"dim": 16, "heads": 4, **values})


def test_tokens_of_wrong_width_are_rejected() -> None:
    for num_queries in (None, 1):
        with pytest.raises(FavoritError, match=r"x must be .* \(B, N, 16\), not torch.float32 \(1, 5, 8\)"):
            Attention(16, 2)(torch.zeros(1, 5, 8), num_queries=num_queries)


def test_invalid_layers_are_rejected() -> None:
    with pytest.raises(FavoritError, match="heads=3 does not divide dim=16"):
        Attention(16, 3)
    with pytest.raises(FavoritError, match="linformer: tokens=None"):
        Attention(16, 4, mixer="linformer")
    with pytest.raises(FavoritError, match="causal mixer with prefix=1"):
        Attention(16, 4, mixer="relu(causal=True)", prefix=1)
    with pytest.raises(FavoritError, match="causal mixer with prefix=1"):
        Attention(16, 4, mixer="relu(causal=True)")(torch.randn(1, 5, 16), grid=(2, 2), prefix=1)
    with pytest.raises(FavoritError, match="got 7 tokens"):
        Attention(16, 4)(torch.randn(1, 7, 16), grid=(2, 3))
    mixer = build_mixer("linformer(k=2)", heads=2, head_dim=8, tokens=6)
    with pytest.raises(FavoritError, match=r"built for 6 tokens and got 5"):
        mixer(*tensors(5, 8))
    with pytest.raises(FavoritError, match="6 queries and 5 keys"):
        builder("none")(head_dim=8, tokens=5)(*tensors(6, 8, n_keys=5))
