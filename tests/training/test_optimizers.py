"""Every registered optimizer: weight decay, parameter groups, and convergence on a quadratic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from favorit import FavoritError
from favorit.config import TrainConfig
from favorit.training import Epoch
from favorit.training.optim import OPTIMIZERS, build_optimizers
from training_helpers import first_model, fit, resolved, tiny


@dataclass(frozen=True)
class Case:
    """The specs of one registered name, the torch `classes` they build, and a learning rate at which a quadratic falls
    to 1 % within 200 steps.
    """

    specs: tuple[str, ...]
    lr: float
    classes: tuple[type, ...]


CASES = {
    "adamw": Case(("adamw", "adamw(beta1=0.8, beta2=0.95)"), 0.05, (torch.optim.AdamW,)),
    "adam": Case(("adam", "adam(beta2=0.99)"), 0.05, (torch.optim.Adam,)),
    "sgd": Case(("sgd", "sgd(momentum=0.0)", "sgd(nesterov=True)"), 0.05, (torch.optim.SGD,)),
    "muon": Case(("muon", "muon(momentum=0.9)"), 0.05, (torch.optim.Muon, torch.optim.AdamW)),
}
SPECS = [(spec, case) for case in CASES.values() for spec in case.specs]
every = pytest.mark.parametrize(("spec", "case"), SPECS, ids=[spec for spec, _ in SPECS])


class Net(nn.Module):
    """The kinds of parameters that optimizers distinguish: matrices inside and outside of blocks, vectors, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(1, 4, 2)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4)])
        self.scalar = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(4, 2)


def test_every_registered_optimizer_has_a_case():
    assert set(CASES) == set(OPTIMIZERS)


@every
def test_optimizer_minimizes_a_quadratic(spec, case):
    model = Net()
    goals = [torch.randn_like(p) for p in model.parameters()]
    optimizers = build_optimizers(model, TrainConfig(optimizer=spec, lr=case.lr, weight_decay=0.0))
    values = []
    for _ in range(200):
        loss = sum((p - goal).square().sum() for p, goal in zip(model.parameters(), goals, strict=True))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        values.append(loss.item())
    assert values[-1] < values[0] / 100


@every
def test_every_parameter_has_one_optimizer_and_only_matrices_decay(spec, case):
    config, _ = resolved(tiny(model=dict(layout="mixture|favor(m=8)")))
    model = first_model(config)
    optimizers = build_optimizers(model, TrainConfig(optimizer=spec, lr=0.25, weight_decay=0.125))
    assert tuple(type(optimizer) for optimizer in optimizers) == case.classes
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    seen = [id(p) for group in groups for p in group["params"]]
    assert sorted(seen) == sorted(id(p) for p in model.parameters())
    for group in groups:
        assert group["lr"] == 0.25
        for p in group["params"]:
            assert group["weight_decay"] == (0.125 if p.ndim >= 2 else 0.0)


@every
def test_frozen_parameters_are_left_out(spec, case):
    model = Net()
    model.head.requires_grad_(False)
    model.blocks[0].bias.requires_grad_(False)
    optimizers = build_optimizers(model, TrainConfig(optimizer=spec))
    seen = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    assert seen == {id(p) for p in model.parameters() if p.requires_grad}


def test_muon_optimizes_only_the_matrices_of_the_blocks():
    config, _ = resolved(tiny())
    model = first_model(config)
    muon, adamw = build_optimizers(model, TrainConfig(optimizer="muon"))
    names = {id(p): name for name, p in model.named_parameters()}
    inside = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    outside = {names[id(p)] for group in adamw.param_groups for p in group["params"]}
    assert inside == {name for name, p in model.named_parameters() if name.startswith("blocks.") and p.ndim == 2}
    assert {name.split(".")[0] for name in outside} >= {"stem", "head", "class_token", "position"}
    assert len(inside) >= 8
    assert inside.isdisjoint(outside)


def test_spec_parameters_are_passed_to_torch():
    model = Net()
    (optimizer,) = build_optimizers(model, TrainConfig(optimizer="adamw(beta1=0.8, beta2=0.95)"))
    assert optimizer.defaults["betas"] == (0.8, 0.95)
    (optimizer,) = build_optimizers(model, TrainConfig(optimizer="sgd(momentum=0.5, nesterov=True)"))
    assert (optimizer.defaults["momentum"], optimizer.defaults["nesterov"]) == (0.5, True)
    assert build_optimizers(model, TrainConfig(optimizer="muon(momentum=0.5)"))[0].defaults["momentum"] == 0.5


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("adamm", "unknown optimizer 'adamm': did you mean 'adam'"),
        ("sgd(momentun=0.9)", "unknown parameter of sgd 'momentun': did you mean 'momentum'"),
        ("sgd(momentum=2)", "momentum=2 is not valid"),
        ("adamw(beta1=1.0)", "beta1=1.0 is not valid"),
        ("sgd(momentum=0.0, nesterov=True)", "nesterov"),
    ],
)
def test_invalid_optimizer_is_named(spec, words):
    with pytest.raises(FavoritError, match=words.replace("(", r"\(")):
        build_optimizers(Net(), TrainConfig(optimizer=spec))


@pytest.mark.parametrize("name", CASES)
def test_run_learns_with_every_optimizer(tmp_path: Path, name):
    config = tiny(train=dict(epochs=6, optimizer=name, lr=0.02, schedule="constant"))
    _, events = fit(tmp_path, config)
    losses = [event.train_loss for event in events if isinstance(event, Epoch)]
    assert losses[-1] < 0.9 * losses[0]
