"""Measurements: interleaved timing, FLOPs counted by hand, memory, and the fingerprint of the machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from favorit import measure


def test_calls_are_interleaved_and_warmup_is_not_counted():
    order: list[str] = []
    timings = measure.time_interleaved(
        {name: lambda name=name: order.append(name) for name in "abc"}, repeats=4, warmup=2
    )
    assert "".join(order) == "abc" * (2 + 4)
    assert {name: timing.repeats for name, timing in timings.items()} == dict.fromkeys("abc", 4)


@pytest.mark.parametrize(("threads", "expected"), [(1, "1 thread, CPU"), (2, "2 threads, CPU")])
def test_hardware_is_described_by_threads_and_processor(threads: int, expected: str):
    assert measure.describe_hardware({"threads": threads, "processor": "CPU"}) == expected


def test_timing_is_median_and_quartiles(monkeypatch):
    """With a simulated clock: the calls take 1, 2, 3, 4 and 90 seconds."""
    durations = iter([50.0, 1.0, 3.0, 2.0, 90.0, 4.0])
    now = [0.0]

    def call() -> None:
        now[0] += next(durations)

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    timing = measure.time_interleaved({"call": call}, repeats=5, warmup=1)["call"]
    assert timing == measure.Timing(median=3.0, low=2.0, high=4.0, repeats=5)


def test_cache_penalty_is_the_slowdown_on_elements_of_another_core(monkeypatch):
    """With a simulated clock: an operation takes 2 seconds on the window of the previous one and 5 on the other."""
    now, last = [0.0], [None]
    add_ = torch.Tensor.add_

    def timed(window: torch.Tensor, value: int) -> torch.Tensor:
        now[0] += 2.0 if window.data_ptr() == last[0] else 5.0
        last[0] = window.data_ptr()
        return add_(window, value)

    monkeypatch.setattr(torch.Tensor, "add_", timed)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    assert measure.cache_penalty(elements=8, repeats=3) == 2.5


def test_timing_of_one_repetition_has_equal_quartiles():
    timing = measure.time_interleaved({"sleep": lambda: time.sleep(0.01)}, repeats=1, warmup=0)["sleep"]
    assert timing.low == timing.median == timing.high
    assert 0.01 <= timing.median < 1


class Product(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


class Attend(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def test_flops_of_matrix_product_are_exact():
    assert measure.flops(Product(), torch.zeros(3, 5), torch.zeros(5, 7))[""] == 2 * 3 * 5 * 7
    assert measure.flops(Product(), torch.zeros(2, 3, 5), torch.zeros(2, 5, 7))[""] == 2 * 2 * 3 * 5 * 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(("nq", "nk"), [(5, 5), (3, 9), (1, 65)])
def test_flops_of_fused_attention_equal_its_two_matrix_products(nq, nk, dtype, gradients):
    q, k = torch.zeros(2, 4, nq, 16, dtype=dtype, requires_grad=gradients), torch.zeros(2, 4, nk, 16, dtype=dtype)
    assert measure.flops(Attend(), q, k, k)[""] == 2 * (2 * 2 * 4 * nq * nk * 16)


def test_flops_are_counted_by_submodule():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 3), nn.Conv1d(1, 2, 1)))
    model[2][1] = nn.Linear(3, 5)
    counts = measure.flops(model, torch.zeros(6, 4))
    parts = {"0": 2 * 6 * 4 * 8, "2.0": 2 * 6 * 8 * 3, "2.1": 2 * 6 * 3 * 5}
    assert {path: counts[path] for path in parts} == parts
    assert counts["2"] == parts["2.0"] + parts["2.1"]
    assert counts[""] == sum(parts.values())


def test_counting_flops_leaves_no_gradients():
    model = nn.Linear(2, 2)
    measure.flops(model, torch.ones(1, 2))
    assert model.weight.grad is None


def test_frozen_parameters_are_not_counted():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    assert measure.parameters(model) == 3 * 4 + 4 + 2 * 4
    model[0].weight.requires_grad_(False)
    assert measure.parameters(model) == 4 + 2 * 4


def test_peak_memory_grows_by_the_bytes_of_a_large_tensor():
    """In a new process, because the peak of this one may already be higher."""
    code = "import torch; from favorit.measure import peak_memory as p; a = p(); x = torch.ones(2**26); print(a, p())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert 20 * 2**20 < before < 2**33
    assert 0.9 * 2**28 < after - before < 1.5 * 2**28


def test_fingerprint_has_hardware_threads_and_versions():
    found = measure.fingerprint()
    assert set(found) == {"machine", "processor", "cores", "threads", "accelerator", "system", "python", "torch"}
    assert json.loads(json.dumps(found)) == found
    assert found == measure.fingerprint()
    assert (found["threads"], found["torch"]) == (torch.get_num_threads(), torch.__version__)
    assert found["cores"] >= 1
