"""The benchmarks measure what they say, and nothing that is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas
import pytest
import torch

from favorit import FavoritError, ModelConfig, build_mixer, measure
from favorit.bench import speed
from favorit.bench.epoch import epoch_cost
from favorit.cli.main import main
from favorit.config import RunConfig

SIZE = speed.Size(batch=2, heads=2, tokens=9, head_dim=4)


def test_peak_bytes_are_those_alive_at_once() -> None:
    x = torch.zeros(1000)

    def call() -> torch.Tensor:
        one = x + 1
        two = one + 1
        del one
        three = two + 1  # two and three: 8,000 bytes
        return three.view(10, 100)[0]

    assert speed.peak_bytes(call) == 8000


def test_every_mixer_is_timed_both_ways_and_says_its_path() -> None:
    costs = speed.mixer_costs(["softmax", "relu(m=8)", "uniform", "linformer(k=3)"], SIZE, repeats=2)
    assert [(cost.name, cost.what) for cost in costs[:2]] == [("softmax", "forward"), ("softmax", "forward+backward")]
    assert len(costs) == 8
    assert all(0 < cost.low <= cost.median <= cost.high and cost.memory > 0 for cost in costs)
    paths = {(cost.name, cost.what): cost.path for cost in costs}
    assert "fused" in paths["softmax", "forward"]
    assert "explicit" in paths["softmax", "forward+backward"]
    assert "2 images and 9 tokens" in paths["relu(m=8)", "forward"]


def test_no_speed_for_a_mixer_that_differs_from_its_weights() -> None:
    mixer = build_mixer("softmax", heads=2, head_dim=4)
    right = mixer.weights
    mixer.weights = lambda q, k, key_mask=None: 1.01 * right(q, k)  # type: ignore[method-assign]
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    with pytest.raises(FavoritError, match="no speed is reported"):
        speed.check("softmax", mixer, q, k, v)


def test_what_does_not_fit_is_said_before_it_is_allocated() -> None:
    free = measure.free_memory()
    assert free is not None
    with pytest.raises(FavoritError, match=r"tokens=\d+ needs .* GiB .* at most \d+ tokens fit"):
        speed.mixer_costs(["softmax"], speed.Size(1, 1, free, 64))


def test_models_in_all_layouts_are_nine() -> None:
    tiny = ModelConfig(image_size=8, dim=8, depth=2, heads=2, mlp_dim=8)
    models = speed.all_layouts({"tiny": tiny})
    assert len(models) == 9
    assert models["tiny intertwined favor(m=128)"].layout == "intertwined"
    costs = speed.model_costs({"tiny": tiny}, 4, repeats=2)
    assert [cost.what for cost in costs] == ["training step", "inference"]
    assert all(cost.gemm_share is not None and 0 < cost.gemm_share < 1 for cost in costs)


def test_an_epoch_is_trained_whole_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = RunConfig(
        data={"name": "synthetic(size=8, train=96, test=48)", "augment": "flip"}, model={"dim": 8, "depth": 1, "heads": 2, "mlp_dim": 8}
    )
    cost = epoch_cost(config)
    assert cost.images == 96
    assert cost.seconds > 0
    assert 0 < cost.pipeline_share < 1
    assert list(tmp_path.iterdir()) == []


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["favorit", "bench", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_the_command_prints_a_table_json_and_csv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "speed.csv"
    sizes = ("--batch", "2", "--tokens", "9", "--repeats", "2")
    assert not run(monkeypatch, "speed", "--mixer", "softmax", "--mixer", "relu", *sizes, "--explain", "--json", "--out", str(out))
    printed = capsys.readouterr()
    assert len(json.loads(printed.out.splitlines()[-1])["costs"]) == 4
    assert "1.00x" in printed.err
    assert "softmax, forward: torch's fused kernel" in printed.err
    assert pandas.read_csv(out)["name"].tolist() == ["softmax", "softmax", "relu", "relu"]


@pytest.mark.parametrize("arguments", [("--mixer", "sofmax"), ("--layouts", "some"), ("--preset", "hybird")])
def test_mistakes_are_one_line(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "speed", *arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
