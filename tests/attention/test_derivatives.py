"""Derivatives of every registered mixer below and above all size thresholds: transforms of torch.func, forward mode,
and an error for second derivatives where there are none.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from favorit import FavoritError
from favorit.attention import Mixer
from favorit.attention.cpu.limits import Limits
from favorit.attention.mixer import UnprojectedTokens
from favorit.selftest import cases
from favorit.selftest.inputs import assert_close, case_builder, has_causal, tensors

# torch compiles its own forward-mode formulas with torch.jit.script when they are first used.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
SPECS = [(case, spec) for table in (cases.MIXERS, cases.RAW) for case in table.values() for spec in case.specs]
ABOVE = Limits(one_thread=0, few_feature_elements=0, fewest_weights=0, bf16_products=True)
LIMITS = {"below the thresholds": Limits(), "above the thresholds": ABOVE}
TOKENS, WIDTH = 9, 4


def mixers(case: cases.Case, spec: str, limits: str) -> list[Mixer]:
    """The mixer of a spec in fp64, and its causal form if it has one."""
    build = case_builder(case, spec, LIMITS[limits])
    forms = [False, True] if has_causal(build) else [False]
    return [build(head_dim=WIDTH, tokens=TOKENS, causal=causal).double() for causal in forms]


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (x.detach() for x in tensors(TOKENS, WIDTH, dtype=torch.float64))
    return q, k, v


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize(("case", "spec"), SPECS)
def test_transforms_of_torch_func_equal_eager_gradients(case: cases.Case, spec: str, limits: str, masked: bool) -> None:
    """grad, vmap of grad, jvp, and forward mode."""
    q, k, v = inputs()
    mask = torch.tensor([True, False, True] * 3).expand(2, -1) if masked else None
    tangents = inputs()[::-1]
    for mixer in mixers(case, spec, limits):

        def loss(q: Tensor, k: Tensor, v: Tensor, mixer: Mixer = mixer) -> Tensor:
            return mixer(q, k, v, key_mask=None if mask is None else mask[: len(q)]).square().sum()

        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        eager = torch.autograd.grad(loss(*leaves), leaves, materialize_grads=True, allow_unused=True)
        per_image = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)))(*(x.unsqueeze(1) for x in (q, k, v)))
        for mine, image, expected in zip(torch.func.grad(loss, (0, 1, 2))(q, k, v), per_image, eager, strict=True):
            assert_close(mine, expected, 1e-9)
            assert_close(image.squeeze(1), expected, 1e-9)
        slope = sum((g * t).sum() for g, t in zip(eager, tangents, strict=True))
        assert isinstance(slope, Tensor)
        assert_close(torch.func.jvp(loss, (q, k, v), tangents)[1], slope, 1e-9)
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(x.requires_grad_(), t) for x, t in zip(inputs(), tangents, strict=True)]
            assert_close(forward_ad.unpack_dual(loss(*duals)).tangent, slope, 1e-9)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize(("case", "spec"), [(case, case.specs[0]) for case in cases.MIXERS.values()])
def test_hessian_equals_finite_differences(case: cases.Case, spec: str, limits: str) -> None:
    q, k, v = inputs()
    direction = torch.randn(q.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for mixer in mixers(case, spec, limits):

        def slope(q: Tensor, mixer: Mixer = mixer) -> Tensor:
            return torch.func.grad(lambda q: mixer(q, k, v).square().sum())(q)

        product = torch.func.jvp(slope, (q,), (direction,))[1]
        step = 1e-6
        difference = (slope(q + step * direction) - slope(q - step * direction)) / (2 * step)
        assert_close(product, difference, 1e-6)
        backward = torch.func.grad(lambda q, slope=slope: (slope(q) * direction).sum())(q)
        assert_close(backward, product, 1e-9)


@pytest.mark.parametrize("spec", ["relu(m=8)", "favor(m=8)", "favor(m=8, causal=True)", "learned", "softmax", "read"])
def test_second_derivative_of_a_fast_implementation_is_an_error_instead_of_a_part(spec: str) -> None:
    """The gradient of the output does not require gradients, so torch itself would leave out this function."""
    q, k, v = (x.float() for x in inputs())
    name = "relu(m=8)" if spec == "read" else spec
    (mixer,) = mixers(cases.Case((name,)), name, "above the thresholds")[:1]
    mixer = mixer.float()
    q.requires_grad_()
    weight = torch.eye(WIDTH).expand(2, 2, WIDTH, WIDTH)
    out = mixer.read(q[:, :, :1], UnprojectedTokens(k[:, 0], weight, None)) if spec == "read" else mixer(q, k, v)
    with pytest.raises(FavoritError, match=r"create_graph=True .* torch.func") as error:
        torch.autograd.grad(out.sum() + q.square().sum(), q, create_graph=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("spec", ["relu(m=64)", "favor(m=64)", "favor(m=64, causal=True)", "softmax"])
@pytest.mark.parametrize("tokens", [40, 700])
def test_forward_mode_works_at_default_thresholds(spec: str, tokens: int) -> None:
    """Blocks are used from 512 tokens here."""
    mixer = case_builder(cases.Case((spec,)), spec)(heads=4, head_dim=16, tokens=tokens)
    q, k, v = (x.detach().repeat(4, 2, 1, 1) for x in tensors(tokens, 16))
    with forward_ad.dual_level():
        out = mixer(forward_ad.make_dual(q, q), k, v)
        tangent = forward_ad.unpack_dual(out).tangent
    step = 1e-2
    difference = (mixer(q * (1 + step), k, v) - mixer(q * (1 - step), k, v)) / (2 * step)
    assert_close(tangent, difference, 2e-2)
