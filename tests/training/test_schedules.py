"""Every registered schedule against values computed by hand, and against torch's schedulers where they are equal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.optim import lr_scheduler

from favorit import FavoritError
from favorit.config import TrainConfig
from favorit.training import Epoch, Step
from favorit.training.optim import SCHEDULES, learning_rate_factor
from training_helpers import fit, tiny

EPOCHS, STEPS = 10, 7


@dataclass(frozen=True)
class Case:
    """A spec, and its factors {epoch: factor} in a run of ten epochs, computed by hand."""

    spec: str
    at: dict[float, float]


CASES = {
    "constant": [Case("constant", {0: 1, 5: 1, 10: 1})],
    "cosine": [
        Case("cosine", {0: 1, 2.5: (1 + math.sqrt(0.5)) / 2, 5: 0.5, 10: 0}),
        Case("cosine(final=0.2)", {0: 1, 5: 0.6, 10: 0.2}),
    ],
    "step": [
        Case("step", {0: 1, 4.999: 1, 5: 0.5, 9.9: 0.5, 10: 0.25}),
        Case("step(every=3, factor=0.1)", {0: 1, 2.9: 1, 3: 0.1, 6: 0.01, 9: 0.001}),
    ],
    "one_cycle": [
        Case("one_cycle", {0: 1 / 25, 1.5: (1 / 25 + 1) / 2, 3: 1, 6.5: (1 + 1 / 250_000) / 2, 10: 1 / 250_000}),
        Case("one_cycle(peak=0.5, start=10.0, end=100.0)", {0: 0.1, 2.5: 0.55, 5: 1, 7.5: (1 + 1e-3) / 2, 10: 1e-3}),
        Case("one_cycle(peak=0.0)", {0: 1, 5: (1 + 1 / 250_000) / 2, 10: 1 / 250_000}),
    ],
}
ALL = [case for cases in CASES.values() for case in cases]
every = pytest.mark.parametrize("case", ALL, ids=[case.spec for case in ALL])


def factor(spec: str, step: int, warmup: float = 0.0) -> float:
    return learning_rate_factor(TrainConfig(schedule=spec, warmup=warmup, epochs=EPOCHS), step, STEPS)


def test_every_registered_schedule_has_a_case():
    assert set(CASES) == set(SCHEDULES)
    assert all(case.spec.partition("(")[0] == name for name, cases in CASES.items() for case in cases)


@every
def test_schedule_equals_hand_computed_factors(case):
    schedule = SCHEDULES.build(case.spec)
    for epoch, expected in case.at.items():
        assert schedule(epoch, EPOCHS) == pytest.approx(expected, rel=1e-12, abs=1e-15)


@every
def test_schedule_is_evaluated_at_the_fraction_of_the_epoch(case):
    schedule = SCHEDULES.build(case.spec)
    for step in (0, 1, STEPS, 3 * STEPS + 2, EPOCHS * STEPS - 1):
        assert factor(case.spec, step) == schedule(step / STEPS, EPOCHS)


@every
def test_warmup_rises_linearly_and_ends(case):
    warmup_steps = 2 * STEPS
    for step in range(EPOCHS * STEPS):
        expected = factor(case.spec, step) * min((step + 1) / warmup_steps, 1)
        assert factor(case.spec, step, warmup=2) == pytest.approx(expected, rel=1e-15)
    assert factor(case.spec, 0, warmup=2) > 0
    assert factor(case.spec, warmup_steps - 1, warmup=2) == factor(case.spec, warmup_steps - 1)


@pytest.mark.parametrize("warmup", [0.01, 0.5, 1.5])
def test_warmup_of_a_fraction_of_an_epoch(warmup):
    found = [factor("constant", step, warmup) for step in range(2 * STEPS)]
    assert found == [min((step + 1) / (warmup * STEPS), 1.0) for step in range(2 * STEPS)]
    assert found[-1] == 1.0


def torch_rates(make: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler], count: int) -> list[float]:
    """The learning rates of the first `count` steps under a torch scheduler."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, rates = make(optimizer), []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_cosine_equals_torch():
    total = EPOCHS * STEPS
    expected = torch_rates(lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, total, eta_min=0.1), total)
    assert [factor("cosine(final=0.1)", step) for step in range(total)] == pytest.approx(expected, rel=1e-9)


def test_step_equals_torch():
    total = EPOCHS * STEPS
    expected = torch_rates(lambda optimizer: lr_scheduler.StepLR(optimizer, 3 * STEPS, gamma=0.1), total)
    assert [factor("step(every=3, factor=0.1)", step) for step in range(total)] == pytest.approx(expected, rel=1e-9)


def test_one_cycle_equals_torch():
    """torch reaches the end one step earlier, so its cycle has total + 1 steps and the same peak."""
    total = EPOCHS * STEPS
    peak = (0.3 * total + 1) / (total + 1)  # torch peaks at step pct_start (total + 1) - 1

    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        return lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=total + 1, pct_start=peak, cycle_momentum=False)

    expected = torch_rates(make, total)
    assert [factor("one_cycle", step) for step in range(total)] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_run_trains_at_the_scheduled_rates(tmp_path: Path, optimizer):
    config = tiny(train=dict(epochs=2, schedule="one_cycle", warmup=0.5, lr=0.02, optimizer=optimizer))
    run, events = fit(tmp_path, config)
    steps = [event for event in events if isinstance(event, Step)]
    per_epoch = steps[0].steps
    expected = [0.02 * learning_rate_factor(config.train, step, per_epoch) for step in range(2 * per_epoch)]
    assert [step.lr for step in steps] == expected
    last = [event.lr for event in events if isinstance(event, Epoch)]
    assert last == [expected[per_epoch - 1], expected[-1]]
    assert [record["lr"] for record in run.epochs] == last


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("cosin", "unknown schedule 'cosin': did you mean 'cosine'"),
        ("step(evry=2)", "unknown parameter of step 'evry'"),
        ("step(every=0)", "every=0 is not valid"),
        ("one_cycle(peak=1.0)", "peak=1.0 is not valid"),
    ],
)
def test_invalid_schedule_is_named(spec, words):
    with pytest.raises(FavoritError, match=words):
        SCHEDULES.build(spec)
