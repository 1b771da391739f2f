"""Ours against other libraries: equal mathematics is found equal, other mathematics is not timed, and processes take
turns.
"""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

from checks import Products
from favorit import FavoritError, measure
from favorit.bench import alternate, peers, recreation
from favorit.bench.alternate import ContenderError, Process, ask, take_turns
from favorit.bench.comparison import TOLERANCES, Agreement, Comparison, Sizes, agreement
from favorit.bench.contender import COMPARISONS, serve
from favorit.bench.spread import beside_limits, interleaved_with_limit, spread
from favorit.cli.main import main
from favorit.data import build_preprocess, load_dataset
from favorit.process import as_shipped, worker_settings

SIZES = Sizes(batch=2, heads=2, tokens=9, head_dim=4, m=8, depth=2, data="synthetic(size=32, train=12, test=4)")
SDPA = "attention: softmax / torch SDPA"
HYBRID = "hybrid: all_standard with its input / published, re-created"


def installed(comparison: Comparison) -> bool:
    return comparison.package is None or importlib.util.find_spec(comparison.package) is not None


def request(key: str, side: str, way: str = "eager") -> dict[str, Any]:
    return {"comparison": key, "sizes": asdict(SIZES), "side": side, "way": way}


def answers(asked: Mapping[str, Any], lines: str = "") -> list[Any]:
    """What a contender says, without a process of its own."""
    out = io.StringIO()
    serve(dict(asked), io.StringIO(lines), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Comparisons without processes; returns what was asked for, in order."""
    asked: list[str] = []

    def ask_here(request: Mapping[str, Any]) -> Any:
        asked.append(f"{request['side']} {request['way']}")
        return answers(request)[0]

    def turns_here(requests: Mapping[str, tuple[Mapping[str, Any], Mapping[str, str]]], repeats: int) -> dict[str, Any]:
        found = {}
        for name, (one, environment) in requests.items():
            kept = environment.items() >= worker_settings().items()
            shipped = not environment.keys() & worker_settings().keys()
            asked.append(f"{one['side']} {one['way']} {'kept' if kept else 'shipped' if shipped else environment}")
            warm, *seconds = answers(one, "\n" * repeats)
            assert warm == "warm"
            found[name] = spread([1e3 * value for value in seconds])
        return found

    monkeypatch.setattr(peers, "ask", ask_here)
    monkeypatch.setattr(peers, "take_turns", turns_here)
    monkeypatch.setattr(measure, "gemm_limit", lambda: 1e12)
    return asked


def is_named_as_absent(key: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the peer is not here, which its row then says."""
    if installed(COMPARISONS[key]):
        return False
    monkeypatch.setattr(measure, "gemm_limit", lambda: 1e12)
    (row,) = peers.compare([key], SIZES, repeats=1)
    assert row.check.startswith("absent: pip install ")
    return True


@pytest.mark.parametrize("key", COMPARISONS)
def test_every_peer_does_what_we_do_or_is_named_as_absent(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = COMPARISONS[key]
    if is_named_as_absent(key, monkeypatch):
        return
    torch.manual_seed(0)
    found = agreement(comparison, SIZES)
    assert found.bytes_of_image > 0
    assert found.flops > 0
    if comparison.adopt is None:
        assert found.difference is None
    else:
        assert found.difference is not None
        assert found.difference < 1e-5


def test_the_list_is_what_the_command_promises() -> None:
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
    assert [key.partition(":")[0] for key in peers.chosen("hybrid")] == ["hybrid"] * 6
    assert peers.chosen("all") == list(COMPARISONS)
    with pytest.raises(FavoritError, match="did you mean 'attention'"):
        peers.chosen("atention")


def test_words_choose_among_the_comparisons_of_a_case() -> None:
    assert peers.chosen("attention", "relu") == ["attention: relu(m={m}) / performer-pytorch"]
    assert peers.chosen("attention", "favor(m=32)", 32) == ["attention: favor(m={m}) / performer-pytorch"]
    assert [key.partition(":")[0] for key in peers.chosen("all", "performer-pytorch")] == [
        "attention",
        "attention",
        "step",
        "step",
    ]
    with pytest.raises(
        FavoritError,
        match="'relo' is in no comparison of attention: there are softmax / torch SDPA; relu\\(m=128\\) / ",
    ):
        peers.chosen("attention", "relo")


@pytest.mark.parametrize("key", ["step: softmax / plain ViT, SDPA", HYBRID])
@pytest.mark.parametrize(
    "wrong", ["class_token", "positions", "patches.bias", "blocks.1.attention.qkv.weight", "norm.weight"]
)
def test_a_weight_that_differs_is_found(key: str, wrong: str) -> None:
    comparison = COMPARISONS[key]
    assert comparison.adopt is not None

    def adopt_and_disturb(ours: Any, theirs: Any) -> None:
        assert comparison.adopt is not None
        comparison.adopt(ours, theirs)
        with torch.no_grad():
            theirs.get_parameter(wrong).view(-1)[0] += 1.0

    found = agreement(replace(comparison, adopt=adopt_and_disturb), SIZES)
    agrees, verdict = peers.judge(found, SIZES, None)
    assert not agrees
    assert verdict.startswith("differs by ")


def test_an_epsilon_is_told_apart_from_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check leaves out what performer-pytorch adds, and says how much that moves."""
    key = "attention: favor(m={m}) / performer-pytorch"
    if is_named_as_absent(key, monkeypatch):
        return
    torch.manual_seed(0)
    found = agreement(COMPARISONS[key], replace(SIZES, head_dim=16, tokens=65))
    assert found.difference is not None
    assert found.as_it_is is not None
    assert found.difference < 1e-5 < TOLERANCES["eager"] < found.as_it_is
    assert "without its epsilon" in peers.judge(found, SIZES, None)[1]


def test_what_one_image_cannot_hold_is_said_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("favorit.bench.comparison.PROBES", (16, 32))
    monkeypatch.setattr(measure, "free_memory", lambda: 1 << 24)
    with pytest.raises(FavoritError, match=r"tokens=100000000 needs .* GiB and 0.0 are free: at most \d+ tokens fit"):
        agreement(COMPARISONS["attention: softmax / torch SDPA"], replace(SIZES, tokens=100_000_000))


def test_what_may_be_timed() -> None:
    assert peers.judge(Agreement(2e-7, 2e-7, 10.0, 1), SIZES, None) == (True, "equal to 2e-07")
    assert peers.judge(Agreement(0.0, 0.0, 10.0, 1), SIZES, None) == (True, "equal bit for bit")
    assert peers.judge(Agreement(2e-7, 0.03, 10.0, 1), SIZES, None)[1].endswith("which moves it by 3.0%")
    assert peers.judge(Agreement(None, None, 10.0, 1), SIZES, None)[0]
    assert peers.judge(Agreement(2e-3, 2e-3, 10.0, 1), SIZES, None) == (
        False,
        "differs by 2.0e-03: no speed is reported",
    )
    assert not peers.judge(Agreement(float("nan"), 0.0, 10.0, 1), SIZES, None)[0]
    agrees, verdict = peers.judge(Agreement(0.0, 0.0, 2.0**30, 1), SIZES, 2**31)
    assert not agrees
    assert verdict.endswith("at most --batch 1")


def test_a_row_has_four_contenders_and_their_ratios(in_this_process: list[str]) -> None:
    (row,) = peers.compare([SDPA], SIZES, repeats=2)
    assert in_this_process == [
        "check eager",
        "theirs eager shipped",
        "ours eager kept",
        "theirs eager kept",
        "ours eager shipped",
    ]
    assert row.check.startswith("equal")
    assert row.ours_ms is not None
    assert row.peer_ms is not None
    assert row.ratio == pytest.approx(row.peer_ms / row.ours_ms)
    assert row.ratio_kept is not None
    assert row.ratio_plain is not None
    assert (row.ours_epoch, row.way) == (None, "eager")


@pytest.mark.parametrize("way", ["compiled", "bf16"])
def test_another_way_is_a_row_of_its_own_and_only_ours(
    way: str, in_this_process: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda module: module)
    rows = list(peers.compare([SDPA], SIZES, repeats=1, ways=["eager", way]))  # type: ignore[list-item]
    assert [row.way for row in rows] == ["eager", way]
    assert in_this_process[5:] == [
        f"check {way}",
        "theirs eager shipped",
        f"ours {way} kept",
        "theirs eager kept",
        f"ours {way} shipped",
    ]


@pytest.mark.parametrize("key", [SDPA, HYBRID])
def test_bf16_is_bf16_and_may_differ_as_such(key: str) -> None:
    """More than fp32 does, so it was used; not more than three digits allow."""
    found = Agreement(**answers(request(key, "check", "bf16"))[0])
    assert found.difference is not None
    assert TOLERANCES["eager"] < found.difference < TOLERANCES["bf16"]
    assert peers.judge(found, SIZES, None, TOLERANCES["bf16"])[0]
    assert not peers.judge(found, SIZES, None)[0]


@pytest.mark.parametrize("way", ["eager", "bf16"])
def test_the_loop_of_our_trainer_runs_in_bf16_too(way: str) -> None:
    with Products() as products:
        answers(request(HYBRID, "ours", way), "\n")
    assert ({torch.bfloat16} in products.types) == (way == "bf16")


def test_no_speed_for_what_differs(in_this_process: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(COMPARISONS[SDPA], theirs=replace(COMPARISONS[SDPA].theirs, build=lambda sizes: _Doubled()))
    monkeypatch.setitem(COMPARISONS, SDPA, wrong)
    (row,) = peers.compare([SDPA], SIZES, repeats=1, ways=["eager", "bf16"])
    assert row.check.startswith("differs by ")
    assert row.ours_ms is row.peer_ms is row.ratio is None
    assert in_this_process == ["check eager"]


class _Doubled(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return 2 * torch.nn.functional.scaled_dot_product_attention(q, k, v)


def test_an_absent_peer_is_named_and_the_others_go_on(
    in_this_process: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    keys = ["attention: linformer(k=32), layer / linformer", "step: softmax / vit-pytorch", SDPA]
    rows = list(peers.compare(keys, SIZES, repeats=1))
    assert rows[0].check == "absent: pip install 'favorit[peers]'"
    assert rows[1].check == "absent: pip install --no-deps vit-pytorch (and einops)"
    assert rows[2].ratio is not None


def test_the_limits_are_those_of_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def one_after_the_other(name: str, *values: float) -> None:
        left = iter(values)
        monkeypatch.setattr(measure, name, lambda: order.append(name) or next(left))

    one_after_the_other("gemm_limit", 100.0, 300.0)
    one_after_the_other("handing_over", 1.0, 2.0)
    assert beside_limits(lambda: order.append("work")) == (None, 200.0, 1.5)
    assert order == ["gemm_limit", "handing_over", "work", "gemm_limit", "handing_over"]


def test_a_product_takes_its_turn_among_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(measure, "gemm", lambda: (lambda: order.append("product"), 10**6))
    calls = {("a", 1): lambda: time.sleep(0.006), ("b", 2): lambda: order.append("b") or time.sleep(0.006)}
    times, limit = interleaved_with_limit(calls, 2)
    assert set(times) == {("a", 1), ("b", 2)}
    assert limit > 10**6, "of a product that takes no time"
    assert order[:2] == ["b", "product"]


def test_processes_answer_take_turns_and_end() -> None:
    worker = {**as_shipped(), **worker_settings()}
    found = take_turns({"ours": (request(SDPA, "ours"), worker), "theirs": (request(SDPA, "theirs"), as_shipped())}, 3)
    assert set(found) == {"ours", "theirs"}
    assert all(0 < times.low <= times.median <= times.high for times in found.values())


def test_the_last_words_of_a_process_that_dies_are_passed_on() -> None:
    with pytest.raises(ContenderError, match="no such comparison"):
        ask(request("no such comparison", "ours"))


def test_an_interrupted_comparison_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    usual = subprocess.Popen

    def record(command: list[str], **options: Any) -> subprocess.Popen[str]:
        started.append(usual([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        return started[-1]

    monkeypatch.setattr(alternate.subprocess, "Popen", record)
    with pytest.raises(KeyboardInterrupt), Process({}, {}):
        raise KeyboardInterrupt
    assert [process.returncode is not None for process in started] == [True]


def test_the_published_hybrid_has_its_size() -> None:
    model = COMPARISONS[HYBRID].theirs.build(SIZES)
    assert measure.parameters(model) == measure.parameters(COMPARISONS[HYBRID].ours.build(SIZES)) == 142_026


def test_pictures_read_one_by_one_are_ours_without_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither flipped nor turned, a picture of theirs is exactly what our loader makes of it."""
    data = load_dataset(SIZES.data)
    monkeypatch.setattr(recreation, "DEGREES", 0.0)
    monkeypatch.setattr(torch, "rand", lambda *sizes: torch.ones(1))
    values, label = recreation.ImageByImage(data.train)[3]
    ours = build_preprocess(recreation.our_config(SIZES).data.preprocess, data.mean, data.std)(data.train.images[3:4])
    torch.testing.assert_close(values[None], ours, atol=1e-5, rtol=1e-5)
    assert label == data.train.labels[3]


def test_pictures_are_flipped_and_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_dataset(SIZES.data)
    pictures = recreation.ImageByImage(data.train)
    monkeypatch.setattr(recreation, "DEGREES", 0.0)
    torch.manual_seed(0)
    found = {tuple(pictures[0][0].flatten().tolist()) for _ in range(20)}
    assert len(found) == 2, "as it is, and flipped"
    monkeypatch.setattr(recreation, "DEGREES", 5.0)
    assert len({tuple(pictures[0][0].flatten().tolist()) for _ in range(20)}) > 5


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_a_turn_with_its_input_is_a_step_on_the_next_batch(side: str) -> None:
    contender = getattr(COMPARISONS[HYBRID], side)
    torch.manual_seed(0)
    model = contender.build(SIZES)
    step = contender.work(model, SIZES, "eager")
    seen = []
    for _ in range(8):  # more than the six batches of an epoch
        step()
        seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    moved = [(after - before).abs().max().item() for before, after in pairwise(seen)]
    assert all(0 < distance < 0.1 for distance in moved)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["favorit", "bench", "peers", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_the_command_prints_a_table_csv_and_json(
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
    assert rows[0]["ratio"] > 0
    assert "torch SDPA" in printed.err
    assert "above 1 ours is faster" in printed.err


def test_a_step_is_extrapolated_to_the_epoch(in_this_process: list[str]) -> None:
    (row,) = peers.compare([HYBRID], SIZES, repeats=1)
    assert row.ours_ms is not None
    assert row.peer_ms is not None
    assert row.ours_epoch == pytest.approx(25_000 * row.ours_ms / 1e3), "50,000 images in batches of 2"
    assert row.peer_epoch == pytest.approx(25_000 * row.peer_ms / 1e3)


def test_a_mistaken_case_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--case", "steps") == 2
    assert capsys.readouterr().err.count("\n") == 1
