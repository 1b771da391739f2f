"""A batch divided between threads gives what it gives whole, and is divided only where nobody can tell."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from checks import assert_close
from favorit.measure import flops
from favorit.model import ViT, create_model, preset
from favorit.model import shares as sharing
from favorit.model.drop import Dropout
from favorit.model.shares import in_shares, shares

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, params=[2, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    monkeypatch.setattr(sharing, "FEWEST_IMAGES", 2)
    yield request.param
    torch.set_num_threads(before)


def small(**changes: object) -> ViT:
    changes = {"dim": 16, "depth": 2, "heads": 2, "mlp_dim": 24, "image_size": 16, "stem": "patch(4)", **changes}
    return create_model(preset("hybrid").replace(**changes), seed=0).double()


def pictures(count: int = 7, **options: bool) -> Tensor:
    return torch.randn(count, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_(**options)


def whole(model: ViT, images: Tensor) -> Tensor:
    return model.head(model.features(images))


@pytest.mark.parametrize("layout", ["softmax", "relu(m=8)|favor(m=8)", "learned", "linformer(k=4)|uniform"])
@pytest.mark.parametrize("position", ["learned", "rope2d", "learned+irpe_gate"])
def test_shares_equal_the_whole_in_value_and_gradient(layout: str, position: str) -> None:
    model, images = small(layout=layout, position=position), pictures(requires_grad=True)
    wanted = [images, *(p for p in model.parameters() if p.requires_grad)]
    assert shares(len(images), CPU, model) == torch.get_num_threads()
    ours, twin = model(images), whole(model, images)
    assert_close(ours, twin, 1e-12)
    weight = torch.randn_like(twin)
    for mine, exact in zip(*(torch.autograd.grad(out, wanted, weight, allow_unused=True) for out in (ours, twin)), strict=True):
        assert (mine is None) == (exact is None)
        if mine is not None and exact is not None:
            assert_close(mine, exact, 1e-11)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_reach_the_threads(mode: type) -> None:
    model, images = small(), pictures()
    with mode():
        out = model(images)
        assert_close(out, whole(model, images), 1e-12)
    assert not out.requires_grad
    assert out.is_inference() == (mode is torch.inference_mode)


def test_autocast_reaches_the_threads() -> None:
    model, images = small().float(), pictures().float()
    with torch.autocast("cpu", torch.bfloat16):
        ours, twin = model(images), whole(model, images)
    assert ours.dtype == twin.dtype == torch.bfloat16
    assert_close(ours.float(), twin.float(), 1e-2)


def test_the_same_call_gives_the_same_bits() -> None:
    model, images = small().float(), pictures(31).float()

    def gradient() -> list[Tensor]:
        return list(torch.autograd.grad(model(images).square().sum(), list(model.parameters())))

    assert all(torch.equal(one, two) for one, two in zip(gradient(), gradient(), strict=True))


def test_frozen_parameters_stay_without_gradient() -> None:
    model = small()
    model.stem.requires_grad_(False)
    model(pictures()).sum().backward()
    assert all((p.grad is None) == name.startswith("stem.") for name, p in model.named_parameters())


def test_a_second_backward_needs_the_graph_to_be_kept() -> None:
    model = small()
    loss = model(pictures()).sum()
    loss.backward(retain_graph=True)
    gradient = next(model.stem.parameters()).grad
    assert gradient is not None
    once = gradient.clone()
    loss.backward()
    assert_close(gradient, 2 * once, 1e-12)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_an_error_of_a_share_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="broken"):
        in_shares(_broken, pictures(), nn.Identity())


def _broken(images: Tensor) -> Tensor:
    raise ValueError("broken")


def divided(model: nn.Module, batch: int = 64) -> bool:
    return shares(batch, CPU, model) > 1


def test_batch_norm_is_divided_in_evaluation_only() -> None:
    model = small(stem="conv(channels=(4,))")
    assert not divided(model.train())
    assert divided(model.eval())


def test_a_dropout_of_torch_is_divided_in_evaluation_only() -> None:
    """It draws from the global generator, whichever thread comes first."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    assert not divided(model.train())
    assert divided(model.eval())
    assert divided(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0)))


@pytest.mark.parametrize("changes", [{"dropout": 0.3}, {"emb_dropout": 0.3}, {"drop_path": 0.5}])
def test_what_is_dropped_follows_the_global_seed(changes: dict[str, float]) -> None:
    model, images = small(**changes).train(), pictures(64)
    assert divided(model)

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return model(images)

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))
    one, two = drawn(0), drawn(0)
    for mine, twin in zip(*(torch.autograd.grad(out.sum(), list(model.parameters())) for out in (one, two)), strict=True):
        assert torch.equal(mine, twin)


def test_shares_drop_different_things() -> None:
    """The same image in every share meets other masks, and what is kept is right in the mean."""
    dropout = Dropout(0.25).train()
    kept = in_shares(dropout, torch.ones(3000, 1, 4, 4, dtype=torch.float64), dropout)
    assert set(kept.unique().tolist()) == {0.0, 1 / 0.75}
    halves = kept.flatten(1).tensor_split(torch.get_num_threads())
    assert not torch.equal(halves[0][:500], halves[1][:500])
    assert abs(kept.mean().item() - 1) < 5 * (0.25 / 0.75 / kept.numel()) ** 0.5


def test_evaluation_leaves_the_global_generator_alone() -> None:
    model, before = small(dropout=0.3).eval(), torch.get_rng_state()
    model(pictures())
    assert torch.equal(torch.get_rng_state(), before)


def test_hooks_see_the_whole_batch() -> None:
    model, seen = small(), []
    assert divided(model)
    handle = model.blocks[0].register_forward_hook(lambda module, inputs, out: seen.append((len(out), threading.current_thread())))
    model(pictures())
    assert seen == [(7, threading.current_thread())]
    handle.remove()
    assert divided(model)


def test_a_few_images_or_very_many_parameters_are_not_divided(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    model = small()
    assert divided(model, 2 * threads)
    assert not divided(model, 2 * threads - 1)
    monkeypatch.setattr(sharing, "MOST_GRADIENTS", threads * sum(p.numel() for p in model.parameters()) - 1)
    assert not divided(model)


def test_flops_of_all_shares_are_counted() -> None:
    model = small()
    assert flops(model, pictures(12))[""] == 12 * flops(model, pictures(1))[""] > 0


def test_paths_are_those_of_a_share(threads: int) -> None:
    (first, *_) = small(layout="relu(m=8)").paths(64)
    assert first.startswith(f"{threads} shares of {-(-64 // threads)} images, each on one thread: ")
