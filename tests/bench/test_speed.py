"""The benchmarks measure what they say, and nothing that is wrong."""

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
from favorit.attention import explicit
from favorit.bench import memory, models, speed
from favorit.bench.epoch import epoch_cost
from favorit.bench.imagenet import BATCH, EPOCH, PUBLISHED, beside_published
from favorit.bench.spread import interleaved, spread
from favorit.cli.main import main
from favorit.config import RunConfig
from favorit.model import preset

SIZE = speed.Size(batch=2, heads=2, tokens=9, head_dim=4)
TINY = ModelConfig(image_size=8, dim=8, depth=2, heads=2, mlp_dim=8)


def cost(
    name: str, what: str, tokens: int = 65, mean: float = 1.0, per_token: float = 1.0, bytes_per_token: float = 1.0
) -> speed.Cost:
    return speed.Cost(name, what, tokens, mean, mean, mean, mean, 0.1 * mean, per_token, 0, bytes_per_token)


def test_spread_of_known_values() -> None:
    found = spread([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found.median, found.low, found.high, found.mean) == (3.0, 2.0, 4.0, 3.0)
    assert found.deviation == pytest.approx(math.sqrt(2.5))
    assert spread([7.0]) == type(found)(7.0, 7.0, 7.0, 7.0, 0.0)


def test_calls_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock on which they take 10 ms and 20 us."""
    order: list[str] = []
    now = [0.0]

    def take(name: str, seconds: float) -> None:
        order.append(name)
        now[0] += seconds

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    found = interleaved({"slow": lambda: take("slow", 0.01), "fast": lambda: take("fast", 2e-5)}, repeats=3)
    turns = [(name, len(list(calls))) for name, calls in groupby(order)]
    assert [name for name, _ in turns] == ["slow", "fast"] * (len(turns) // 2)
    assert all(count == 1 for name, count in turns if name == "slow")
    assert min(count for name, count in turns[-6:] if name == "fast") > 100, "a clock cannot see one of them"
    assert [found[name].median for name in ("slow", "fast")] == pytest.approx([10, 0.02])


def test_of_several_calls_the_first_of_a_turn_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock on which a call takes ten times as long after another one as after itself."""
    last, now = [""], [0.0]

    def take(name: str) -> None:
        now[0] += 2e-5 if last[0] == name else 2e-4
        last[0] = name

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    found = interleaved({"a": lambda: take("a"), "b": lambda: take("b")}, repeats=3)
    assert [found[name].median for name in "ab"] == pytest.approx([0.02, 0.02])


def test_peak_bytes_are_those_alive_at_once() -> None:
    x = torch.zeros(1000)

    def call() -> torch.Tensor:
        one = x + 1
        two = one + 1
        del one
        three = two + 1  # two and three: 8,000 bytes
        return three.view(10, 100)[0]

    assert memory.peak_bytes(call) == 8000


def test_every_mixer_is_timed_both_ways_and_says_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explicit, "FEWEST_KEPT", 0)
    costs = speed.mixer_costs(["softmax", "relu(m=8)", "uniform", "linformer(k=3)"], [SIZE], repeats=2)
    assert [(cost.name, cost.what) for cost in costs[:2]] == [("softmax", "forward"), ("softmax", "forward+backward")]
    assert len(costs) == 8
    assert all(0 < cost.low <= cost.median <= cost.high and cost.memory > 0 for cost in costs)
    assert all(cost.microseconds_per_token == pytest.approx(1e3 * cost.median / 18) for cost in costs)
    paths = {(cost.name, cost.what): cost.path for cost in costs}
    assert all(paths.values())
    assert "explicit" in paths["softmax", "forward+backward"]


def test_several_token_counts_show_how_a_token_grows() -> None:
    sizes = [replace(SIZE, tokens=tokens) for tokens in (64, 256, 512)]
    costs = speed.mixer_costs(["relu(m=4)", "linformer(k=4)"], sizes, repeats=1)
    assert [cost.tokens for cost in costs if (cost.name, cost.what) == ("relu(m=4)", "forward")] == [64, 256, 512]
    found = speed.scalings(costs)
    assert [(one.name, one.what, one.first, one.last) for one in found[:1]] == [("relu(m=4)", "forward", 64, 512)]
    assert len(found) == 4
    assert all(one.memory < 1.1 for one in found), "nothing of N x N is kept"


def test_scaling_is_of_single_tokens() -> None:
    even = [
        cost("even", "forward", tokens, per_token=2.0, bytes_per_token=1 + 100 / tokens) for tokens in (200, 100, 400)
    ]
    square = [
        cost("square", "forward", tokens, per_token=tokens / 100, bytes_per_token=tokens) for tokens in (100, 400)
    ]
    once = [cost("once", "forward", 100)]
    assert speed.scalings([*even, *square, *once]) == [
        speed.Scaling("even", "forward", 100, 400, 1.0, 0.75),
        speed.Scaling("square", "forward", 100, 400, 4.0, 4.0),
    ]


def test_no_speed_for_a_mixer_that_differs_from_its_weights() -> None:
    mixer = build_mixer("softmax", heads=2, head_dim=4)
    right = mixer.weights
    mixer.weights = lambda q, k, key_mask=None: 1.01 * right(q, k)  # type: ignore[method-assign]
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    with pytest.raises(FavoritError, match="no speed is reported"):
        speed.check("softmax", mixer, q, k, v)


@pytest.mark.parametrize("trained", [False, True])
def test_the_batch_that_is_timed_is_checked_with_and_without_gradients(trained: bool) -> None:
    """Another path is taken by a large batch, or in training: an error there is found."""
    mixer = build_mixer("relu", heads=2, head_dim=4)
    right = mixer.forward
    mixer.forward = lambda q, k, v, key_mask=None: (
        right(q, k, v) * (1.01 if len(q) > 1 and torch.is_grad_enabled() == trained else 1)
    )  # type: ignore[method-assign]
    q, k, v = torch.randn(3, 5, 2, 9, 4, requires_grad=True)
    speed.check("relu", mixer, q[:1], k[:1], v[:1])
    with pytest.raises(FavoritError, match="no speed is reported"):
        speed.check("relu", mixer, q, k, v)


def test_what_does_not_fit_is_said_before_it_is_allocated() -> None:
    free = measure.free_memory()
    assert free is not None
    with pytest.raises(FavoritError, match=r"tokens=\d+ needs .* GiB .* at most \d+ tokens fit"):
        speed.mixer_costs(["softmax"], [speed.Size(1, 1, free, 64)])
    with pytest.raises(FavoritError, match=r"images=\d+ needs .* GiB .* at most \d+ images fit"):
        models.model_costs({"tiny": TINY}, free)


def test_the_largest_that_fits_is_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "free_memory", lambda: 1000 * 1000)
    memory.check_fits("tokens", 1000, lambda n: n * n)
    with pytest.raises(FavoritError, match="at most 1000 tokens fit"):
        memory.check_fits("tokens", 1001, lambda n: n * n)
    monkeypatch.setattr(measure, "free_memory", lambda: None)
    memory.check_fits("tokens", 10**9, lambda n: n * n)


def test_a_matrix_of_tokens_is_foreseen() -> None:
    needed = memory.grows_with_square(10, 3 * 10 + 5 * 100, 20, 3 * 20 + 5 * 400)
    assert needed(1000) == pytest.approx(3 * 1000 + 5 * 1000**2)
    assert memory.grows_with_square(10, 30, 20, 60)(1000) == pytest.approx(3000)
    assert memory.grows_with_square(1, 30, 1, 30)(10) == pytest.approx(300)


def test_what_one_image_needs_is_foreseen_from_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The foreseen bytes are those that are then there, of training the batch or of checking one image."""
    asked: list[float] = []
    monkeypatch.setattr(speed, "check_fits", lambda what, count, needed: asked.append(needed(count)))
    monkeypatch.setattr(speed, "PROBES", (1024, 2048))
    size = speed.Size(batch=4, heads=2, tokens=3000, head_dim=4)
    for spec in ("relu(m=512)", "favor(m=512)", "relu(m=16, causal=True)", "softmax", "linformer"):
        speed.check_memory(spec, size)
        inputs, mixer = speed.make_inputs(size), speed.build(spec, size)
        training = 4 * inputs[0].nbytes + memory.peak_bytes(speed.attention_calls(mixer, inputs)[speed.TRAINING])
        checking = memory.peak_bytes(partial(speed.check, spec, mixer, *(x[:1] for x in inputs[:3])))
        assert 0.8 < asked.pop() / max(training, checking) < 2, spec


def test_models_in_all_layouts_are_nine() -> None:
    layouts = models.all_layouts({"tiny": TINY})
    assert len(layouts) == 9
    assert layouts["tiny intertwined favor(m=128)"].layout == "intertwined"
    costs = models.model_costs({"tiny": TINY}, 4, repeats=2)
    assert [(cost.what, cost.tokens) for cost in costs] == [("training step", 5), ("inference", 5)]
    assert all(cost.gemm_share is not None and 0 < cost.gemm_share < 1 for cost in costs)


def test_the_published_table_stands_beside_ours() -> None:
    table = published.read(PUBLISHED["vit-192-imagenet"])
    assert (len(table.rows), table.hardware) == (9, "NVIDIA T4")
    layouts = models.all_layouts({"m": preset("vit-192-imagenet")})
    mean = {name: float(10 + place) for place, name in enumerate(layouts)}
    costs = [cost(name, what, mean=mean[name]) for name in layouts for what in (models.STEP, models.INFERENCE)]
    rows = beside_published(table, layouts, costs, batch=16)
    assert [(row.layout, row.performer) for row in rows[:3]] == [
        ("all_standard", None),
        ("performer_first", "relu(m=128)"),
        ("performer_first", "favor(m=128)"),
    ]
    first, last = rows[0], rows[-1]
    assert (first.published.epoch, first.published.batch, first.published_ratio.epoch) == (136.3, 302.16, 1.0)
    assert first.ours.epoch == pytest.approx(10 / 1e3 * EPOCH / 16)
    assert first.ours.batch == pytest.approx(10 * BATCH / 16)
    assert first.ours.deviation == pytest.approx(0.1 * 10 * BATCH / 16)
    assert (last.layout, last.performer) == ("all_performer", "favor(m=128)")
    assert last.ours_ratio.epoch == pytest.approx(mean["m all_performer favor(m=128)"] / 10)
    assert last.published_ratio.batch == pytest.approx(242.5 / 302.16)


def test_an_unknown_published_table_names_those_there_are() -> None:
    with pytest.raises(FavoritError, match="did you mean 'synthetic_imagenet'"):
        published.read("synthetic_imagnet")


def test_an_epoch_is_trained_whole_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = RunConfig(
        data={"name": "synthetic(size=8, train=96, test=48)", "augment": "flip"},
        model={"dim": 8, "depth": 1, "heads": 2, "mlp_dim": 8},
        train={"batch_size": 16},
    )
    ticks = count()
    with monkeypatch.context() as clock:  # on which each look is a second later
        clock.setattr(time, "perf_counter", lambda: float(next(ticks)))
        clock.setattr(measure, "handing_over", lambda: 1.5)
        cost = epoch_cost(config)
    assert cost is not None
    assert cost.images == 96
    assert cost.seconds == 6, "six steps"
    assert cost.pipeline_share == pytest.approx(1 / 6), "one pass through the loader"
    assert cost.handing_over == 1.5
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


def test_the_command_prints_a_table_json_and_csv(
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
    assert "1.00x" in printed.err
    assert "relu, forward, 5 to 9 tokens: time per token within" in printed.err
    assert "softmax, forward, 9 tokens: torch's fused kernel" in printed.err
    found = pandas.read_csv(out)
    assert found["name"].tolist() == ["softmax", "softmax", "relu", "relu"] * 2
    assert found["tokens"].tolist() == [5] * 4 + [9] * 4


def test_fields_of_a_model_can_be_set(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "--preset",
        "vit-64",
        "--set",
        "model.stem=patch(8)",
        "--set",
        "model.depth=1",
        "--batch",
        "1",
        "--repeats",
        "1",
    )
    assert not run(monkeypatch, "speed", *arguments, "--json")
    assert {cost["tokens"] for cost in json.loads(capsys.readouterr().out.splitlines()[-1])["costs"]} == {17}


def test_the_command_prints_the_published_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a model of the same name and layouts, but small."""
    monkeypatch.setitem(PUBLISHED, "vit-64", "synthetic_imagenet")
    assert not run(
        monkeypatch, "speed", "--preset", "vit-64", "--layouts", "all", "--batch", "1", "--repeats", "1", "--json"
    )
    printed = capsys.readouterr()
    assert len(json.loads(printed.out.splitlines()[-1])["beside_published"]["vit-64"]) == 9
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
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "speed", *arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_needs_no_memory_grows_by_none() -> None:
    costs = speed.mixer_costs(["none"], [replace(SIZE, tokens=tokens) for tokens in (5, 9)], repeats=1)
    assert {found.memory for found in speed.scalings(costs)} == {1.0}


def test_mixers_have_a_share_of_the_limit() -> None:
    """2 products of 2 N^2 D operations, three times of that with the backward."""
    forward, training = speed.mixer_costs(["softmax"], [SIZE], repeats=1)
    operations = 2 * 2 * SIZE.batch * SIZE.heads * SIZE.tokens**2 * SIZE.head_dim
    assert forward.gemm_share is not None
    assert training.gemm_share is not None
    assert training.gemm_share * training.median == pytest.approx(3 * forward.gemm_share * forward.median)
    assert forward.gemm_share * forward.median / 1e3 < operations / 1e9


def test_a_place_that_cannot_be_written_is_said_before_anything_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, "interleaved_with_limit", lambda *_: pytest.fail("timed"))
    assert run(monkeypatch, "speed", "--out", str(tmp_path / "nowhere" / "x.csv")) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert run(monkeypatch, "speed", "--out", str(tmp_path)) == 2
    assert "give the name of a file" in capsys.readouterr().err


def test_models_say_which_path_each_layer_takes() -> None:
    mixed = TINY.replace(layout="softmax|relu(m=4)", depth=2)
    step, inference = models.model_costs({"tiny": mixed}, 4, repeats=1)
    assert step.path.startswith("layer 1: ")
    assert "; layer 2: all features at once, forward on one thread: they are few" in step.path
    assert inference.path.startswith("layer 1: torch's fused kernel")
