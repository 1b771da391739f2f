"""`favorit bench speed` and `bench epoch`: timing, memory, checks before timing, and the commands."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import count, groupby
from pathlib import Path

import pandas
import pytest
import torch

from favorit import FavoritError, ModelConfig, build_mixer, measure, published
from favorit.bench import memory, model_speed, speed
from favorit.bench.epoch import epoch_cost
from favorit.bench.imagenet import BATCH, EPOCH_IMAGES, PUBLISHED, compare_with_published
from favorit.bench.spread import Ratio
from favorit.bench.timing import describe, interleave_calls
from favorit.cli.main import main
from favorit.config import RunConfig
from favorit.model import preset

SIZE = speed.Size(batch=2, heads=2, tokens=9, head_dim=4)
TINY = ModelConfig(image_size=8, dim=8, depth=2, heads=2, mlp_dim=8)


def cost(
    name: str, what: str, tokens: int = 65, mean: float = 1.0, per_token: float = 1.0, bytes_per_token: float = 1.0
) -> speed.Cost:
    times = (mean, mean, mean, mean, 0.1 * mean)
    return speed.Cost(name, what, tokens, *times, per_token, 0, bytes_per_token, rounds=(mean,) * 7)


def test_describe_gives_median_quartiles_mean_and_deviation() -> None:
    found = describe([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found.median, found.low, found.high, found.mean) == (3.0, 2.0, 4.0, 3.0)
    assert found.deviation == pytest.approx(math.sqrt(2.5))
    assert describe([7.0]) == type(found)(7.0, 7.0, 7.0, 7.0, 0.0, (7.0,))


def test_calls_are_interleaved_and_short_ones_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a simulated clock: the calls take 10 ms and 20 us."""
    order: list[str] = []
    now = [0.0]

    def call(name: str, seconds: float) -> None:
        order.append(name)
        now[0] += seconds

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    found = interleave_calls({"slow": lambda: call("slow", 0.01), "fast": lambda: call("fast", 2e-5)}, repeats=3)
    groups = [(name, len(list(calls))) for name, calls in groupby(order)]
    assert [name for name, _ in groups] == ["slow", "fast"] * (len(groups) // 2)
    assert all(count == 1 for name, count in groups if name == "slow")
    assert min(count for name, count in groups[-6:] if name == "fast") > 100, "a single call is too short for the clock"
    assert [found[name].median for name in ("slow", "fast")] == pytest.approx([10, 0.02])


def test_first_of_several_calls_in_a_round_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a simulated clock: a call takes ten times as long after another call as after itself."""
    last, now = [""], [0.0]

    def call(name: str) -> None:
        now[0] += 2e-5 if last[0] == name else 2e-4
        last[0] = name

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    found = interleave_calls({"a": lambda: call("a"), "b": lambda: call("b")}, repeats=3)
    assert [found[name].median for name in "ab"] == pytest.approx([0.02, 0.02])


def test_peak_bytes_leave_out_freed_tensors() -> None:
    x = torch.zeros(1000)

    def call() -> torch.Tensor:
        first = x + 1
        second = first + 1
        del first
        third = second + 1  # second and third: 8,000 bytes
        return third.view(10, 100)[0]

    assert memory.peak_bytes(call) == 8000


def test_mixer_costs_have_times_memory_and_path_of_both_passes() -> None:
    costs = speed.mixer_costs(["softmax", "relu(m=8)", "uniform", "linformer(k=3)"], [SIZE], repeats=2)
    assert [(cost.name, cost.what) for cost in costs[:2]] == [("softmax", "forward"), ("softmax", "forward+backward")]
    assert len(costs) == 8
    assert all(0 < cost.low <= cost.median <= cost.high and cost.memory > 0 for cost in costs)
    assert all(cost.microseconds_per_token == pytest.approx(1e3 * cost.median / 18) for cost in costs)
    assert all(cost.path for cost in costs)


def test_path_of_mixer_costs_is_that_of_the_timed_pass() -> None:
    """Training keeps explicit weights at this size, inference does not."""
    forward, training = speed.mixer_costs(["softmax"], [speed.Size(8, 4, tokens=128, head_dim=4)], repeats=1)
    assert "fused kernel: inference" in forward.path
    assert "explicit weights" in training.path


def test_linear_mixers_scale_linearly_in_memory() -> None:
    sizes = [replace(SIZE, tokens=tokens) for tokens in (64, 256, 512)]
    costs = speed.mixer_costs(["relu(m=4)", "linformer(k=4)"], sizes, repeats=1)
    assert [cost.tokens for cost in costs if (cost.name, cost.what) == ("relu(m=4)", "forward")] == [64, 256, 512]
    found = speed.scalings(costs)
    assert [(each.name, each.what, each.first, each.last) for each in found[:1]] == [("relu(m=4)", "forward", 64, 512)]
    assert len(found) == 4
    assert all(each.memory < 1.1 for each in found), "no N x N buffer"


def test_scaling_is_computed_per_token() -> None:
    even = [
        cost("even", "forward", tokens, per_token=2.0, bytes_per_token=1 + 100 / tokens) for tokens in (200, 100, 400)
    ]
    square = [
        cost("square", "forward", tokens, per_token=tokens / 100, bytes_per_token=tokens) for tokens in (100, 400)
    ]
    single = [cost("single", "forward", 100)]
    assert speed.scalings([*even, *square, *single]) == [
        speed.Scaling("even", "forward", 100, 400, Ratio(1.0, 1.0, 1.0, 7), 0.75),
        speed.Scaling("square", "forward", 100, 400, Ratio(4.0, 4.0, 4.0, 7), 4.0),
    ]


def test_mixer_that_differs_from_its_weights_is_rejected() -> None:
    mixer = build_mixer("softmax", heads=2, head_dim=4)
    right = mixer.weights
    mixer.weights = lambda q, k, key_mask=None: 1.01 * right(q, k)  # type: ignore[method-assign]
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    with pytest.raises(FavoritError, match="no speed is reported"):
        speed.check_weights("softmax", mixer, q, k, v)


@pytest.mark.parametrize("is_trained", [False, True])
def test_check_runs_on_whole_batch_with_and_without_gradients(is_trained: bool) -> None:
    """The check finds an error that only occurs for large batches, in training or in inference."""
    mixer = build_mixer("relu", heads=2, head_dim=4)
    right = mixer.forward
    mixer.forward = lambda q, k, v, key_mask=None: (
        right(q, k, v) * (1.01 if len(q) > 1 and torch.is_grad_enabled() == is_trained else 1)
    )  # type: ignore[method-assign]
    q, k, v = torch.randn(3, 5, 2, 9, 4, requires_grad=True)
    speed.check_weights("relu", mixer, q[:1], k[:1], v[:1])
    with pytest.raises(FavoritError, match="no speed is reported"):
        speed.check_weights("relu", mixer, q, k, v)


def test_size_that_exceeds_memory_is_rejected_before_allocation() -> None:
    free = measure.free_memory()
    assert free is not None
    with pytest.raises(FavoritError, match=r"tokens=\d+ needs .* GiB .* at most \d+ tokens fit"):
        speed.mixer_costs(["softmax"], [speed.Size(1, 1, free, 64)])
    with pytest.raises(FavoritError, match=r"images=\d+ needs .* GiB .* at most \d+ images fit"):
        model_speed.model_costs({"tiny": TINY}, free)


def test_error_names_largest_count_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "free_memory", lambda: 1000 * 1000)
    memory.check_fits("tokens", 1000, lambda n: n * n)
    with pytest.raises(FavoritError, match="at most 1000 tokens fit"):
        memory.check_fits("tokens", 1001, lambda n: n * n)
    monkeypatch.setattr(measure, "free_memory", lambda: None)
    memory.check_fits("tokens", 10**9, lambda n: n * n)


def test_fit_quadratic_recovers_linear_and_quadratic_terms() -> None:
    needed = memory.fit_quadratic(10, 3 * 10 + 5 * 100, 20, 3 * 20 + 5 * 400)
    assert needed(1000) == pytest.approx(3 * 1000 + 5 * 1000**2)
    assert memory.fit_quadratic(10, 30, 20, 60)(1000) == pytest.approx(3000)
    assert memory.fit_quadratic(1, 30, 1, 30)(10) == pytest.approx(300)


def test_predicted_bytes_are_close_to_measured_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prediction covers training the batch and checking one image, whichever needs more."""
    predicted: list[float] = []
    monkeypatch.setattr(speed, "check_fits", lambda what, count, needed: predicted.append(needed(count)))
    monkeypatch.setattr(speed, "PROBE_TOKENS", (1024, 2048))
    size = speed.Size(batch=4, heads=2, tokens=3000, head_dim=4)
    for spec in ("relu(m=512)", "favor(m=512)", "relu(m=16, causal=True)", "softmax", "linformer"):
        speed.check_memory(spec, size)
        inputs, mixer = speed.make_inputs(size), speed.build(spec, size)
        training = 4 * inputs[0].nbytes + memory.peak_bytes(speed.attention_calls(mixer, inputs)[speed.TRAINING])
        checking = memory.peak_bytes(partial(speed.check_weights, spec, mixer, *(x[:1] for x in inputs[:3])))
        assert 0.8 < predicted.pop() / max(training, checking) < 2, spec


def test_all_layouts_gives_nine_models() -> None:
    layouts = model_speed.all_layouts({"tiny": TINY})
    assert len(layouts) == 9
    assert layouts["tiny intertwined favor(m=128)"].layout == "intertwined"
    costs = model_speed.model_costs({"tiny": TINY}, 4, repeats=2)
    assert [(cost.what, cost.tokens) for cost in costs] == [("training step", 5), ("inference", 5)]
    assert all(cost.gemm_share is not None and 0 < cost.gemm_share < 1 for cost in costs)


def test_rows_of_published_table_have_our_times() -> None:
    table = published.read(PUBLISHED["vit-192-imagenet"])
    assert (len(table.rows), table.hardware) == (9, "NVIDIA T4")
    layouts = model_speed.all_layouts({"m": preset("vit-192-imagenet")})
    mean = {name: float(10 + index) for index, name in enumerate(layouts)}
    costs = [
        cost(name, what, mean=mean[name]) for name in layouts for what in (model_speed.STEP, model_speed.INFERENCE)
    ]
    rows = compare_with_published(table, layouts, costs, batch=16)
    assert [(row.layout, row.performer) for row in rows[:3]] == [
        ("all_standard", None),
        ("performer_first", "relu(m=128)"),
        ("performer_first", "favor(m=128)"),
    ]
    first, last = rows[0], rows[-1]
    assert (first.published.epoch, first.published.batch, first.published_ratio.epoch) == (136.3, 302.16, 1.0)
    assert first.ours.epoch == pytest.approx(10 / 1e3 * EPOCH_IMAGES / 16)
    assert first.ours.batch == pytest.approx(10 * BATCH / 16)
    assert first.ours.deviation == pytest.approx(0.1 * 10 * BATCH / 16)
    assert (last.layout, last.performer) == ("all_performer", "favor(m=128)")
    assert last.ours_epoch_ratio == Ratio(*[mean["m all_performer favor(m=128)"] / 10] * 3, 7)
    assert last.ours_batch_ratio == last.ours_epoch_ratio
    assert last.published_ratio.batch == pytest.approx(242.5 / 302.16)


def test_unknown_published_table_is_rejected_with_nearest_match() -> None:
    with pytest.raises(FavoritError, match="did you mean 'synthetic_imagenet'"):
        published.read("synthetic_imagnet")


def test_epoch_cost_trains_all_images_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = RunConfig(
        data={"name": "synthetic(size=8, train=96, test=48)", "augment": "flip"},
        model={"dim": 8, "depth": 1, "heads": 2, "mlp_dim": 8},
        train={"batch_size": 16},
    )
    ticks = count()
    with monkeypatch.context() as clock:  # each reading is one second later
        clock.setattr(time, "perf_counter", lambda: float(next(ticks)))
        clock.setattr(measure, "cache_penalty", lambda: 1.5)
        cost = epoch_cost(config, repeats=2)
    assert cost is not None
    assert cost.images == 96
    assert (cost.seconds, cost.low, cost.high, cost.repeats) == (6, 6, 6, 2), "six steps"
    assert cost.pipeline_share == pytest.approx(1 / 6), "one pass through the loader"
    assert cost.cache_penalty == 1.5
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(
        FavoritError, match=r"data\.subset=48 is not valid here: an epoch is timed on all training images"
    ):
        epoch_cost(config.replace(data=config.data.replace(subset=48)))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["favorit", "bench", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_command_writes_table_json_and_csv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "speed.csv"
    sizes = ("--batch", "2", "--tokens", "9", "--tokens", "5", "--repeats", "2")
    assert not run(
        monkeypatch, "speed", "--mixer", "softmax", "--mixer", "relu", *sizes, "--explain", "--json", "--out", str(out)
    )
    printed = capsys.readouterr()
    report = json.loads(printed.out.splitlines()[-1])
    assert len(report["costs"]) == 8
    assert "foreign_load" in report
    assert "ratio (95 % interval)" in printed.err
    assert "relu, forward, 5 to 9 tokens: time per token varies by" in printed.err
    assert "softmax, forward, 9 tokens: torch's fused kernel" in printed.err
    found = pandas.read_csv(out)
    assert found["name"].tolist() == ["softmax", "softmax", "relu", "relu"] * 2
    assert found["tokens"].tolist() == [5] * 4 + [9] * 4


def relative_times(monkeypatch: pytest.MonkeyPatch, rounds: dict[str, list[float]]) -> None:
    """Replaces the clock of `mixer_costs`: the milliseconds of the rounds of each mixer."""
    times = lambda calls, repeats, pairs: ({key: describe(rounds[key[0]]) for key in calls}, 1e12)  # noqa: E731
    monkeypatch.setattr(speed, "interleave_with_gemm", times)


def test_command_prints_the_interval_of_each_ratio_or_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steady, noisy = [2.0, 2.1, 2.2, 2.1, 2.0, 2.2, 2.1], [0.7, 1.5, 1.0, 0.9, 1.1, 0.8, 1.4]
    relative_times(monkeypatch, {"softmax": [1.0] * 7, "relu": steady, "uniform": noisy})
    out = tmp_path / "speed.csv"
    mixers = [part for name in ("softmax", "relu", "uniform") for part in ("--mixer", name)]
    assert not run(monkeypatch, "speed", *mixers, "--batch", "1", "--tokens", "5", "--tokens", "9", "--out", str(out))
    printed = capsys.readouterr().out
    assert "2.10x (2.00 to 2.20)" in printed
    assert "undecided (0.70 to 1.50)" in printed
    assert "undecided: 4 of 8 ratios after 33 rounds (the most for --repeats 11)" in printed
    assert "time per token varies by 1.80x" in printed
    found = pandas.read_csv(out)
    relu, uniform = (found[found["name"] == name].iloc[0] for name in ("relu", "uniform"))
    assert (relu["ratio"], relu["ratio_low"], relu["ratio_high"], relu["rounds"]) == (2.1, 2.0, 2.2, 7)
    assert (relu["ratio_decided"], uniform["ratio_decided"]) == (True, False)
    assert found[found["name"] == "softmax"]["ratio"].isna().all()


@pytest.mark.parametrize("work", ["mixers", "models"])
def test_each_call_is_compared_with_the_first_of_its_kind(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds continue until these ratios are decided."""
    compared: list[tuple[speed.Key, speed.Key]] = []

    def record(calls: dict[speed.Key, object], repeats: int, pairs: list[tuple[speed.Key, speed.Key]]) -> object:
        compared.extend(pairs)
        return {key: describe([1.0] * 7) for key in calls}, 1e12

    for module in (speed, model_speed):
        monkeypatch.setattr(module, "interleave_with_gemm", record)
    if work == "mixers":
        speed.mixer_costs(["softmax", "relu"], [SIZE])
        assert compared == [(("relu", what, 9), ("softmax", what, 9)) for what in (speed.FORWARD, speed.TRAINING)]
    else:
        model_speed.model_costs({"a": TINY, "b": TINY}, 2)
        whats = (model_speed.STEP, model_speed.INFERENCE)
        assert compared == [(("b", what, 5), ("a", what, 5)) for what in whats]


def test_set_option_changes_model_fields(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--set", "model.stem=patch(8)", "--set", "model.depth=1")
    arguments = ("--preset", "vit-64", *settings, "--batch", "1", "--repeats", "1")
    assert not run(monkeypatch, "speed", *arguments, "--json")
    assert {cost["tokens"] for cost in json.loads(capsys.readouterr().out.splitlines()[-1])["costs"]} == {17}


def test_command_prints_published_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With a small model in place of vit-192-imagenet."""
    monkeypatch.setitem(PUBLISHED, "vit-64", "synthetic_imagenet")
    assert not run(
        monkeypatch, "speed", "--preset", "vit-64", "--layouts", "all", "--batch", "1", "--repeats", "1", "--json"
    )
    printed = capsys.readouterr()
    assert len(json.loads(printed.out.splitlines()[-1])["published"]["vit-64"]) == 9
    assert "NVIDIA T4" in printed.err
    assert "published: other hardware; softmax is the naive form" in printed.err
    assert "136.3" in printed.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--mixer", "sofmax"),
        ("--layouts", "some"),
        ("--preset", "vti-64"),
        ("--preset", "vit-64", "--tokens", "9"),
        ("--preset", "vit-64", "--mixer", "relu"),
        ("--set", "model.depth=1"),
        ("--preset", "vit-64", "--set", "model.dept=1"),
    ],
)
def test_invalid_options_are_rejected_in_one_line(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "speed", *arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_memory_scaling_of_mixer_without_memory_is_one() -> None:
    costs = speed.mixer_costs(["none"], [replace(SIZE, tokens=tokens) for tokens in (5, 9)], repeats=1)
    assert {scaling.memory for scaling in speed.scalings(costs)} == {1.0}


def test_gemm_share_of_training_counts_three_forwards() -> None:
    """Two products of 2 N^2 D operations each; training counts as three times the forward."""
    forward, training = speed.mixer_costs(["softmax"], [SIZE], repeats=1)
    operations = 2 * 2 * SIZE.batch * SIZE.heads * SIZE.tokens**2 * SIZE.head_dim
    assert forward.gemm_share is not None
    assert training.gemm_share is not None
    assert training.gemm_share * training.median == pytest.approx(3 * forward.gemm_share * forward.median)
    assert forward.gemm_share * forward.median / 1e3 < operations / 1e9


def test_unwritable_out_is_rejected_before_timing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, "interleave_with_gemm", lambda *_: pytest.fail("timed"))
    assert run(monkeypatch, "speed", "--out", str(tmp_path / "nowhere" / "x.csv")) == 2
    assert "does not exist: create it first" in capsys.readouterr().err
    assert run(monkeypatch, "speed", "--out", str(tmp_path)) == 2
    assert "give a file name with a suffix" in capsys.readouterr().err


def test_path_of_model_costs_names_each_layer() -> None:
    mixed = TINY.replace(layout="softmax|relu(m=4)|softmax", depth=3)
    step, inference = model_speed.model_costs({"tiny": mixed}, 4, repeats=1)
    for cost in (step, inference):
        assert cost.path.startswith("layer 1: torch's fused kernel")
        assert "; layer 2: all features at once, on one thread" in cost.path
        assert "; layer 3: " in cost.path
