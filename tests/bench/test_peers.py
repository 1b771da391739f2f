"""`favorit bench peers`: agreement is checked before timing, and processes are timed interleaved."""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

from checks import Products
from favorit import FavoritError, measure
from favorit.bench import timed_process
from favorit.bench.peers import published_hybrid, table
from favorit.bench.peers.comparison import TOLERANCES, Agreement, Comparison, Sizes, check_agreement
from favorit.bench.peers.worker import COMPARISONS, serve
from favorit.bench.spread import most_rounds
from favorit.bench.timed_process import TimedProcess, WorkerError, interleave_processes, single_reply
from favorit.bench.timing import describe, interleave_with_gemm, measure_limits_around
from favorit.cli.main import main
from favorit.cli.peers import _cells
from favorit.data import build_preprocess, load_dataset
from favorit.process import default_environment, worker_settings
from simulated_processes import simulated

SIZES = Sizes(batch=2, heads=2, tokens=9, head_dim=4, m=8, depth=2, data="synthetic(size=32, train=12, test=4)")
SDPA = "attention: softmax / torch SDPA"
HYBRID = "hybrid: all_standard with its input / published, re-created"


def is_installed(comparison: Comparison) -> bool:
    return comparison.package is None or importlib.util.find_spec(comparison.package) is not None


def request(key: str, side: str, mode: str = "eager") -> dict[str, Any]:
    return {"comparison": key, "sizes": asdict(SIZES), "side": side, "mode": mode}


def replies(to: Mapping[str, Any], lines: str = "") -> list[Any]:
    """The replies of a worker, run in this process."""
    out = io.StringIO()
    serve(dict(to), io.StringIO(lines), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs comparisons without worker processes; returns the requests in order."""
    requested: list[str] = []

    def reply_here(module: str, request: Mapping[str, Any]) -> Any:
        requested.append(f"{request['side']} {request['mode']}")
        return replies(request)[0]

    def time_here(
        module: str,
        requests: Mapping[str, tuple[Mapping[str, Any], Mapping[str, str]]],
        repeats: int,
        pairs: Collection[tuple[str, str]],
    ) -> dict[str, Any]:
        assert pairs == [("peer default", "ours tuned")]
        found = {}
        for name, (each, environment) in requests.items():
            is_tuned = environment.items() >= worker_settings().items()
            is_default = not environment.keys() & worker_settings().keys()
            setting = "tuned" if is_tuned else "default" if is_default else environment
            requested.append(f"{each['side']} {each['mode']} {setting}")
            warm, *seconds = replies(each, "\n" * repeats)
            assert warm == "warm"
            found[name] = describe([1e3 * value for value in seconds])
        return found

    monkeypatch.setattr(table, "single_reply", reply_here)
    monkeypatch.setattr(table, "interleave_processes", time_here)
    monkeypatch.setattr(measure, "gemm_limit", lambda: 1e12)
    return requested


def is_reported_as_not_installed(key: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if the peer is not installed; its row then says so."""
    if is_installed(COMPARISONS[key]):
        return False
    monkeypatch.setattr(measure, "gemm_limit", lambda: 1e12)
    (row,) = table.measure_rows([key], SIZES, repeats=1)
    assert row.check.startswith("not installed: pip install ")
    return True


@pytest.mark.parametrize("key", COMPARISONS)
def test_every_installed_peer_agrees_with_ours(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = COMPARISONS[key]
    if is_reported_as_not_installed(key, monkeypatch):
        return
    torch.manual_seed(0)
    found = check_agreement(comparison, SIZES)
    assert found.bytes_per_image > 0
    assert found.flops > 0
    if comparison.copy_weights is None:
        assert found.difference is None
    else:
        assert found.difference is not None
        assert found.difference < 1e-5


def test_comparisons_cover_all_documented_peers() -> None:
    found = {(comparison.case, comparison.peer) for comparison in COMPARISONS.values()}
    assert found == {
        ("attention", "torch SDPA"),
        ("attention", "performer-pytorch"),
        ("attention", "linformer"),
        ("step", "plain ViT, SDPA"),
        ("step", "vit-pytorch"),
        ("step", "transformers, SDPA"),
        ("step", "performer-pytorch"),
        ("hybrid", "published, re-created"),
    }
    assert len(COMPARISONS) == 17
    assert [key.partition(":")[0] for key in table.select("hybrid")] == ["hybrid"] * 6
    assert table.select("all") == list(COMPARISONS)
    with pytest.raises(FavoritError, match="did you mean 'attention'"):
        table.select("atention")


def test_only_selects_comparisons_by_text_in_their_name() -> None:
    assert table.select("attention", "relu") == ["attention: relu(m={m}) / performer-pytorch"]
    assert table.select("attention", "favor(m=32)", 32) == ["attention: favor(m={m}) / performer-pytorch"]
    assert [key.partition(":")[0] for key in table.select("all", "performer-pytorch")] == [
        "attention",
        "attention",
        "step",
        "step",
    ]
    with pytest.raises(
        FavoritError,
        match="'relo' matches no comparison of attention: softmax / torch SDPA; relu\\(m=128\\) / ",
    ):
        table.select("attention", "relo")


@pytest.mark.parametrize("key", ["step: softmax / plain ViT, SDPA", HYBRID])
@pytest.mark.parametrize(
    "wrong", ["class_token", "positions", "patches.bias", "blocks.1.attention.qkv.weight", "norm.weight"]
)
def test_check_finds_a_differing_weight(key: str, wrong: str) -> None:
    comparison = COMPARISONS[key]
    assert comparison.copy_weights is not None

    def copy_and_disturb(ours: Any, theirs: Any) -> None:
        assert comparison.copy_weights is not None
        comparison.copy_weights(ours, theirs)
        with torch.no_grad():
            theirs.get_parameter(wrong).view(-1)[0] += 1.0

    found = check_agreement(replace(comparison, copy_weights=copy_and_disturb), SIZES)
    agrees, verdict = table.judge(found, SIZES, None)
    assert not agrees
    assert verdict.startswith("differs by ")


def test_check_reports_epsilon_of_peer_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """The formula agrees without performer-pytorch's epsilon; the verdict says how much the epsilon changes."""
    key = "attention: favor(m={m}) / performer-pytorch"
    if is_reported_as_not_installed(key, monkeypatch):
        return
    torch.manual_seed(0)
    found = check_agreement(COMPARISONS[key], replace(SIZES, head_dim=16, tokens=65))
    assert found.difference is not None
    assert found.difference_with_extras is not None
    assert found.difference < 1e-5 < TOLERANCES["eager"] < found.difference_with_extras
    assert "without its epsilon" in table.judge(found, SIZES, None)[1]


def test_tokens_that_exceed_memory_are_rejected_before_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("favorit.bench.peers.comparison.PROBE_TOKENS", (16, 32))
    monkeypatch.setattr(measure, "free_memory", lambda: 1 << 24)
    with pytest.raises(FavoritError, match=r"tokens=100000000 needs .* GiB and 0.0 are free: at most \d+ tokens fit"):
        check_agreement(COMPARISONS["attention: softmax / torch SDPA"], replace(SIZES, tokens=100_000_000))


def test_judge_allows_timing_only_if_equal_and_small_enough() -> None:
    assert table.judge(Agreement(2e-7, 2e-7, 10.0, 1), SIZES, None) == (True, "equal to 2e-07")
    assert table.judge(Agreement(0.0, 0.0, 10.0, 1), SIZES, None) == (True, "equal bit for bit")
    assert table.judge(Agreement(2e-7, 0.03, 10.0, 1), SIZES, None)[1].endswith("which changes it by 3.0%")
    assert table.judge(Agreement(None, None, 10.0, 1), SIZES, None)[0]
    assert table.judge(Agreement(2e-3, 2e-3, 10.0, 1), SIZES, None) == (
        False,
        "differs by 2.0e-03: no speed is reported",
    )
    assert not table.judge(Agreement(float("nan"), 0.0, 10.0, 1), SIZES, None)[0]
    agrees, verdict = table.judge(Agreement(0.0, 0.0, 2.0**30, 1), SIZES, 2**31)
    assert not agrees
    assert verdict.endswith("at most --batch 1")


def test_row_has_four_processes_and_their_ratios(in_this_process: list[str]) -> None:
    (row,) = table.measure_rows([SDPA], SIZES, repeats=2)
    assert in_this_process == [
        "check eager",
        "theirs eager default",
        "ours eager tuned",
        "theirs eager tuned",
        "ours eager default",
    ]
    assert row.check.startswith("equal")
    assert row.ours_ms is not None
    assert row.peer_ms is not None
    assert row.ratio is not None
    assert row.ratio.low <= row.ratio.value <= row.ratio.high
    assert row.ratio_tuned is not None
    assert row.ratio_default is not None
    assert (row.ours_epoch, row.mode) == (None, "eager")


@pytest.mark.parametrize("mode", ["compiled", "bf16"])
def test_other_modes_are_extra_rows_with_an_eager_peer(
    mode: str, in_this_process: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda module: module)
    rows = list(table.measure_rows([SDPA], SIZES, repeats=1, modes=["eager", mode]))  # type: ignore[list-item]
    assert [row.mode for row in rows] == ["eager", mode]
    assert in_this_process[5:] == [
        f"check {mode}",
        "theirs eager default",
        f"ours {mode} tuned",
        "theirs eager tuned",
        f"ours {mode} default",
    ]


@pytest.mark.parametrize("key", [SDPA, HYBRID])
def test_bf16_differs_more_than_fp32_and_less_than_its_tolerance(key: str) -> None:
    found = Agreement(**replies(request(key, "check", "bf16"))[0])
    assert found.difference is not None
    assert TOLERANCES["eager"] < found.difference < TOLERANCES["bf16"]
    assert table.judge(found, SIZES, None, TOLERANCES["bf16"])[0]
    assert not table.judge(found, SIZES, None)[0]


@pytest.mark.parametrize("mode", ["eager", "bf16"])
def test_training_loop_runs_in_the_requested_precision(mode: str) -> None:
    with Products() as products:
        replies(request(HYBRID, "ours", mode), "\n")
    assert ({torch.bfloat16} in products.types) == (mode == "bf16")


def test_differing_comparison_is_not_timed_in_any_mode(
    in_this_process: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(COMPARISONS[SDPA], theirs=replace(COMPARISONS[SDPA].theirs, build=lambda sizes: _Doubled()))
    monkeypatch.setitem(COMPARISONS, SDPA, wrong)
    (row,) = table.measure_rows([SDPA], SIZES, repeats=1, modes=["eager", "bf16"])
    assert row.check.startswith("differs by ")
    assert row.ours_ms is row.peer_ms is row.ratio is None
    assert in_this_process == ["check eager"]


class _Doubled(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return 2 * torch.nn.functional.scaled_dot_product_attention(q, k, v)


def test_peer_that_is_not_installed_does_not_stop_the_others(
    in_this_process: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table.importlib.util, "find_spec", lambda name: None)
    keys = ["attention: linformer(k=32), layer / linformer", "step: softmax / vit-pytorch", SDPA]
    rows = list(table.measure_rows(keys, SIZES, repeats=1))
    assert rows[0].check == "not installed: pip install 'favorit[peers]'"
    assert rows[1].check == "not installed: pip install --no-deps vit-pytorch (and einops)"
    assert rows[2].ratio is not None


def test_limits_are_means_of_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def set_results(name: str, *values: float) -> None:
        remaining = iter(values)
        monkeypatch.setattr(measure, name, lambda: order.append(name) or next(remaining))

    set_results("gemm_limit", 100.0, 300.0)
    set_results("cache_penalty", 1.0, 2.0)
    assert measure_limits_around(lambda: order.append("work")) == (None, 200.0, 1.5)
    assert order == ["gemm_limit", "cache_penalty", "work", "gemm_limit", "cache_penalty"]


def test_matrix_product_is_interleaved_with_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(measure, "gemm", lambda: (lambda: order.append("product"), 10**6))
    calls = {("a", 1): lambda: time.sleep(0.006), ("b", 2): lambda: order.append("b") or time.sleep(0.006)}
    times, limit = interleave_with_gemm(calls, 2)
    assert set(times) == {("a", 1), ("b", 2)}
    assert limit > 10**6, "the product takes no time"
    assert order[:2] == ["b", "product"]


def test_processes_are_timed_interleaved() -> None:
    tuned = {**default_environment(), **worker_settings()}
    requests = {"ours": (request(SDPA, "ours"), tuned), "theirs": (request(SDPA, "theirs"), default_environment())}
    found = interleave_processes(table.WORKER, requests, 3)
    assert set(found) == {"ours", "theirs"}
    assert all(0 < times.low <= times.median <= times.high for times in found.values())


def test_processes_are_timed_longer_until_their_ratio_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """With simulated processes: the peer alternates between 1 and 3 seconds."""
    seconds = {"ours": itertools.repeat(1.0), "theirs": itertools.cycle([1.0, 3.0])}
    process = simulated(lambda request, environment: next(seconds[request["side"]]))
    monkeypatch.setattr(timed_process, "TimedProcess", process)
    requests: dict[str, Any] = {side: ({"side": side}, {}) for side in seconds}
    assert len(interleave_processes(table.WORKER, requests, 7)["ours"].values) == 7
    found = interleave_processes(table.WORKER, requests, 7, [("theirs", "ours")])
    assert len(found["ours"].values) == most_rounds(7)


def test_row_states_the_spread_of_its_ratios(monkeypatch: pytest.MonkeyPatch, in_this_process: list[str]) -> None:
    milliseconds = {
        "peer default": [44.0, 111.0] * 5,
        "ours tuned": [10.0] * 10,
        "peer tuned": [41.0] * 10,
        "ours default": [11.0] * 10,
    }
    monkeypatch.setattr(
        table, "interleave_processes", lambda *_: {name: describe(values) for name, values in milliseconds.items()}
    )
    (row,) = table.measure_rows([SDPA], SIZES, repeats=10)
    found = table.columns(row)
    assert (found["ratio_low"], found["ratio_high"], found["ratio_decided"]) == (4.4, 11.1, False)
    assert (found["ratio_tuned"], found["ratio_tuned_decided"], found["rounds"]) == (4.1, True, 10)
    assert "undecided (4.40 to 11.1)" in _cells(row)
    assert "4.10x" in _cells(row)


def test_error_of_worker_process_is_raised() -> None:
    with pytest.raises(WorkerError, match="no such comparison"):
        single_reply(table.WORKER, request("no such comparison", "ours"))


def test_interrupted_comparison_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def record(command: list[str], **options: Any) -> subprocess.Popen[str]:
        started.append(popen([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        return started[-1]

    monkeypatch.setattr(timed_process.subprocess, "Popen", record)
    with pytest.raises(KeyboardInterrupt), TimedProcess("worker", {}, {}):
        raise KeyboardInterrupt
    assert [process.returncode is not None for process in started] == [True]


def test_published_hybrid_has_its_parameter_count() -> None:
    model = COMPARISONS[HYBRID].theirs.build(SIZES)
    assert measure.parameters(model) == measure.parameters(COMPARISONS[HYBRID].ours.build(SIZES)) == 142_026


def test_per_image_dataset_without_augmentation_equals_our_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_dataset(SIZES.data)
    monkeypatch.setattr(published_hybrid, "DEGREES", 0.0)
    monkeypatch.setattr(torch, "rand", lambda *sizes: torch.ones(1))
    values, label = published_hybrid.PerImageDataset(data.train)[3]
    ours = build_preprocess(published_hybrid.our_config(SIZES).data.preprocess, data.mean, data.std)(
        data.train.images[3:4]
    )
    torch.testing.assert_close(values[None], ours, atol=1e-5, rtol=1e-5)
    assert label == data.train.labels[3]


def test_per_image_dataset_flips_and_rotates(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_dataset(SIZES.data)
    dataset = published_hybrid.PerImageDataset(data.train)
    monkeypatch.setattr(published_hybrid, "DEGREES", 0.0)
    torch.manual_seed(0)
    found = {tuple(dataset[0][0].flatten().tolist()) for _ in range(20)}
    assert len(found) == 2, "original and flipped"
    monkeypatch.setattr(published_hybrid, "DEGREES", 5.0)
    assert len({tuple(dataset[0][0].flatten().tolist()) for _ in range(20)}) > 5


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_call_with_input_is_a_step_on_the_next_batch(side: str) -> None:
    implementation = getattr(COMPARISONS[HYBRID], side)
    torch.manual_seed(0)
    model = implementation.build(SIZES)
    step = implementation.make_call(model, SIZES, "eager")
    parameters = []
    for _ in range(8):  # more than the six batches of an epoch
        step()
        parameters.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    moved = [(after - before).abs().max().item() for before, after in itertools.pairwise(parameters)]
    assert all(0 < distance < 0.1 for distance in moved)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["favorit", "bench", "peers", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_command_writes_table_csv_and_json(
    in_this_process: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "peers.csv"
    options = ("--batch", "2", "--tokens", "9", "--heads", "2", "--head-dim", "4", "--m", "8", "--repeats", "1")
    assert not run(monkeypatch, "--case", "attention", *options, "--out", str(out), "--json")
    printed = capsys.readouterr()
    report = json.loads(printed.out.splitlines()[-1])
    assert "foreign_load" in report
    rows = report["rows"]
    assert pandas.read_csv(out)["ours"].tolist() == [row["ours"] for row in rows]
    assert [row["ours"] for row in rows[:3]] == ["softmax", "relu(m=8)", "favor(m=8)"]
    assert 0 < rows[0]["ratio_low"] <= rows[0]["ratio"] <= rows[0]["ratio_high"]
    assert "torch SDPA" in printed.err
    assert "above 1 ours is faster" in printed.err


def test_epoch_is_extrapolated_from_a_step(in_this_process: list[str]) -> None:
    (row,) = table.measure_rows([HYBRID], SIZES, repeats=1)
    assert row.ours_ms is not None
    assert row.peer_ms is not None
    assert row.ours_epoch == pytest.approx(25_000 * row.ours_ms / 1e3), "50,000 images in batches of 2"
    assert row.peer_epoch == pytest.approx(25_000 * row.peer_ms / 1e3)


def test_unknown_case_is_rejected_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--case", "steps") == 2
    assert capsys.readouterr().err.count("\n") == 1
