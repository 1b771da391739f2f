"""`favorit study`: results, output and errors, with real workers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import favorit
from favorit import FavoritError
from favorit.cli.study import app
from favorit.smoothing import smooth
from favorit.study import Options, load_study
from favorit.study.plan import make_plan
from favorit.study.tasks import Task, TaskEvent, Unfinished
from favorit.training import Epoch
from favorit.training.folder import RunFolder
from training_helpers import DATA, MODEL, Outcome, assert_bit_equal, files, finish, fit, start

BASE: dict[str, Any] = {
    "data.name": DATA,
    "train.batch_size": 16,
    **{f"model.{key}": value for key, value in MODEL.items()},
}
TINY = {"train.lr": [0.01, 1e30], "seed": [0, 1]}

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def study(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `favorit study ...` in this process and returns exit status and stdout; user errors are raised."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str]:
        capsys.readouterr()
        status = app(list(map(str, arguments)), standalone_mode=False)
        return int(status or 0), capsys.readouterr().out

    return run


def write(path: Path, points: dict[str, list[Any]], **changes: Any) -> Path:
    base = {**BASE, "train.epochs": 2, **changes}
    path.write_text(
        f"from favorit.study import Study, product\nSTUDY = Study('tiny', 'Does it?', {base!r}, product({points!r}))\n"
    )
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int, str]:
    """A study of four points, two of which diverge, run by the command in a new process: file, folder, exit status and
    output.
    """
    place = tmp_path_factory.mktemp("study")
    path, out = write(place / "tiny.py", TINY), place / "runs"
    code = "from favorit.cli.study import app; app()"
    process = start("-c", code, "run", path, "--out", out, "--accelerator", "cpu", cwd=place)
    status, output, errors = finish(process)
    assert errors == ""
    return path, out, status, output


def test_failed_points_do_not_stop_the_others(finished):
    path, out, status, output = finished
    assert status == 1
    results = {task.name: RunFolder(out / task.id).result() for task in make_plan(load_study(path), Options()).tasks}
    assert {name: result["status"] for name, result in results.items()} == {
        "lr=0.01 seed=0": "complete",
        "lr=0.01 seed=1": "complete",
        "lr=1e+30 seed=0": "failed",
        "lr=1e+30 seed=1": "failed",
    }
    assert "2 complete, 2 failed, 0 left" in output
    assert re.search(r"^failed: lr=1e\+30 seed=0: the loss became nan", output, re.M)
    mean = sum(results[f"lr=0.01 seed={seed}"]["test"]["accuracy"] for seed in (0, 1)) / 2
    line = re.search(r"^lr=0\.01 +2 +(.*)$", output, re.M)
    assert line is not None
    assert line[1].startswith(f"{mean:.2%} ")
    assert "Does it?" in output
    assert "4 points: 0 done, 4 to do" in output


def test_progress_of_piped_output_is_plain_lines(finished):
    lines = finished[3].splitlines()
    assert sum("starts on worker" in line for line in lines) == 4
    assert {line.split("]")[0] for line in lines if line.startswith("[")} == {f"[{number}/4" for number in (1, 2, 3, 4)}
    assert not any("\x1b" in line for line in lines)


def test_runs_are_bit_equal_to_those_of_train(finished, tmp_path: Path):
    """Both use the same number of threads."""
    path, out, _, _ = finished
    alone, _ = fit(tmp_path, load_study(path).configs()["lr=0.01 seed=1"])
    run = favorit.Run(out / alone.id)
    assert_bit_equal(Outcome.of(run), Outcome.of(alone))
    assert run.result["environment"] == alone.result["environment"]


def test_rerun_of_a_finished_study_trains_nothing_and_prints_the_same_table(finished, study: Command):
    path, out, _, output = finished
    before = dict(files(out))
    status, again = study("run", path, "--out", out)
    assert status == 1
    assert "4 points: 2 done, 0 to do" in again
    assert again.split("\n\n")[-2:][0] in output
    after = dict(files(out))
    assert {name: after[name] for name in before if not name.startswith(".studies")} == {
        name: before[name] for name in before if not name.startswith(".studies")
    }


def test_status_and_plan_count_the_points(finished, study: Command):
    path, out, _, _ = finished
    status, output = study("status", path, "--out", out)
    assert status == 0
    assert output.rstrip().endswith("4 points: 2 complete, 2 failed")
    assert "the loss became nan" in output
    status, output = study("plan", path, "--out", out, "--no-estimate", "--seeds", "0,1,2", "--only", "lr=0.01*")
    assert status == 0
    assert output.rstrip().endswith("3 points: 2 complete, 1 missing")


def test_plan_estimates_the_missing_runs(tmp_path: Path, study: Command, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "tiny.py", {"model.dim": [8, 16]})
    fit(tmp_path / "runs", load_study(path).configs()["dim=8"])
    monkeypatch.setenv("FAVORIT_CACHE", str(tmp_path / "cache"))
    arguments = ("plan", path, "--out", tmp_path / "runs", "--workers", "2")
    for again in ([], ["--again"]):
        status, output = study(*arguments, *again)
        assert status == 0
        printed_first, times = output.split("\n\npoint ")
        rows = {line.split()[0]: line.split() for line in printed_first.splitlines() if line.startswith("dim=")}
        assert (rows["dim=8"][2:], rows["dim=16"][2:]) == (["complete"], ["missing"])
        assert "2 points: 1 complete, 1 missing" in printed_first
        assert times.splitlines()[1:] == ["dim=16        0 s", "about 0 s left with 2 workers here"]
    status, output = study(*arguments)
    assert status == 0
    rows = {line.split()[0]: line.split() for line in output.splitlines() if line.startswith("dim=")}
    assert rows["dim=16"][2:] == ["missing", "0", "s"], "the timing is remembered, so there is one table"
    assert "about 0 s left with 2 workers here" in output


def test_plan_is_printed_before_models_are_timed(tmp_path: Path, study: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAVORIT_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "tiny.py", {"model.dim": [8, 16]})

    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("favorit.study.estimate._cost", stop)
    status, output = study("plan", path, "--out", tmp_path / "runs")
    assert status == 130
    assert "2 points: 2 missing" in output


def test_points_that_are_the_same_run_are_noted_in_plan_run_and_status(tmp_path: Path, study: Command):
    path = write(tmp_path / "tiny.py", {"model.layout": ["none", "none|none"], "seed": [0, 1]}, **{"train.epochs": 1})
    for verb in (["plan", "--no-estimate"], ["run"], ["status"]):
        status, output = study(*verb, path, "--out", tmp_path / "runs")
        assert status == 0
        assert output.count("note: layout=none is the same run as layout=none|none: trained once\n") == 1, output
        assert "2 points" in output


def test_plan_shows_what_a_layout_shorter_than_the_depth_expands_to(tmp_path: Path, study: Command):
    path = write(
        tmp_path / "tiny.py", {"model.layout": ["relu|softmax", "softmax", "intertwined"]}, **{"model.depth": 4}
    )
    output = study("plan", path, "--no-estimate", "--out", tmp_path / "runs")[1]
    assert "\nlayout relu|softmax at depth 4: relu|softmax|relu|softmax\n" in output
    assert output.count("at depth") == 1


def test_plan_of_missing_data_names_the_fetch_command(tmp_path: Path, study: Command):
    status, output = study("plan", "hybrids", "--no-estimate", "--only", "all_standard", "--data-dir", tmp_path)
    assert status == 0
    assert "2 points: 2 no data" in output
    for name in ("mnist", "cifar10"):
        assert f"{name} is not in {tmp_path}: run 'favorit data fetch {name}'" in output
    assert "note: published accuracies were measured on augmented test images" in output


def test_list_has_every_study_with_its_question(study: Command):
    status, output = study("list")
    assert status == 0
    for name in ("vit-variants", "kernels", "hybrids", "linear-attention", "positions", "quickstart"):
        assert re.search(
            rf"^{name} +{len(load_study(name).points)}  {re.escape(load_study(name).question)}$", output, re.M
        )


def test_points_of_data_that_cannot_be_fetched_fail_and_the_others_are_complete(
    tmp_path: Path, study: Command, monkeypatch: pytest.MonkeyPatch
):
    """Points of a data set that cannot be downloaded are listed as failed. The other point was complete before, so no
    worker starts.
    """
    from favorit.data import sources

    monkeypatch.setattr(sources, "_attempts", lambda *_: iter(()))
    path = write(tmp_path / "tiny.py", {"data.name": [DATA, "cifar100"]})
    (config,) = (config for name, config in load_study(path).configs().items() if "synthetic" in name)
    fit(tmp_path / "runs", config)
    status, output = study("run", path, "--out", tmp_path / "runs", "--data-dir", tmp_path / "data")
    assert status == 1
    assert "1 complete, 1 failed, 0 left" in output
    assert re.search(
        r"^failed: data=cifar100: cifar100 is not in .* By hand: put cifar-100-binary.tar.gz", output, re.M
    )


def test_cpus_and_gpus_are_passed_to_the_cluster(tmp_path: Path, study: Command, monkeypatch: pytest.MonkeyPatch):
    received: dict[str, Any] = {}

    def cluster(tasks: list[Task], out: Path, **options: Any) -> Iterator[TaskEvent]:
        received.update(options)
        yield from (Unfinished(task, "enough", later=True) for task in tasks)

    monkeypatch.setattr("favorit.study.cluster.cluster", cluster)
    path = write(tmp_path / "tiny.py", {"seed": [0]})
    _, output = study("run", path, "--out", tmp_path / "runs", "--ray", "there:1", "--cpus", 4, "--gpus", 0.5)
    assert "0 complete, 0 failed, 1 left" in output
    assert (received["address"], received["cpus"], received["gpus"]) == ("there:1", 4, 0.5)
    study("run", path, "--out", tmp_path / "runs", "--ray", "auto")
    assert received["address"] == "auto"


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return [(point.step, point.value) for point in EventAccumulator(str(folder)).Reload().Scalars(tag)]


def test_tensorboard_has_every_epoch_of_each_run_once(tmp_path: Path, study: Command):
    path, out = write(tmp_path / "tiny.py", {"seed": [0, 1]}), tmp_path / "runs"
    stopped, other = load_study(path).configs().values()

    def stop(event: Any, _: Any) -> None:
        if isinstance(event, Epoch):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        favorit.train(stopped, out=out, accelerator="cpu", listen=stop)
    for _ in range(2):
        assert study("run", path, "--out", out, "--accelerator", "cpu", "--tensorboard")[0] == 0
    runs = [fit(out, config)[0] for config in (stopped, other)]
    assert {folder.name for folder in (out / "tensorboard").iterdir()} == {run.id for run in runs}
    for run in runs:
        losses = [record["validation_loss"] for record in run.epochs]
        for tag, expected in (("loss/validation", losses), ("loss/validation_smoothed", smooth(losses))):
            found = curve(out / "tensorboard" / run.id, tag)
            assert [step for step, _ in found] == [1, 2]
            assert [value for _, value in found] == pytest.approx(expected, rel=1e-6)


def test_missing_tensorboard_package_is_reported_before_training(
    tmp_path: Path, study: Command, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(FavoritError, match=r"pip install 'favorit\[tensorboard\]'"):
        study("run", "quickstart", "--out", tmp_path / "runs", "--tensorboard")
    assert not (tmp_path / "runs").exists()


def text(points: str) -> str:
    return f"from favorit.study import *\nSTUDY = Study('s', '?', {{'model.stem': 'patch(2)'}}, {points})"


BAD: dict[str, tuple[str, str]] = {
    "a file that fails to import": ("import nothing_of_that_name", "line 1: ModuleNotFoundError"),
    "duplicate points": (text("Points({'seed': 0}, {'seed': 0})"), "points 1 and 2 are the same: seed=0"),
    "an unknown field": (text("product({'model.dims': [8]})"), "did you mean 'model.dim'"),
    "a model that cannot be built": (
        text("product({'model.stem': ['patch(2)', 'patch(3)']})"),
        "point 'stem=patch(3)'",
    ),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("verb", ["plan", "run", "status"])
def test_invalid_study_trains_nothing(tmp_path: Path, study: Command, verb, content, message):
    path = tmp_path / "bad.py"
    path.write_text(content)
    with pytest.raises(FavoritError) as error:
        study(verb, path, "--out", tmp_path / "runs")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "quickstat"],
            "unknown study (or the path of a .py file with STUDY = ...) 'quickstat': did you mean 'quickstart'",
        ),
        (["run", "quickstart", "--seeds", "0;1"], "--seeds 0;1 is not valid"),
        (["run", "quickstart", "--only", "linformer"], "no point matches 'linformer'"),
        (["run", "quickstart", "--protocol", "sounds"], "unknown protocol 'sounds'"),
        (["run", "quickstart", "--subset", "5"], "study quickstart, point 'layout=softmax'"),
        (
            ["run", "quickstart", "--cpus", "4"],
            "cpus=4 is valid only for runs on a Ray cluster: add --ray ADDRESS, or remove it",
        ),
        (
            ["run", "quickstart", "--cpus", "4", "--gpus", "0.5"],
            "cpus=4 and gpus=0.5 is valid only for runs on a Ray cluster: add --ray ADDRESS",
        ),
    ],
)
def test_invalid_options_are_one_line_errors(tmp_path: Path, study: Command, arguments, message):
    with pytest.raises(FavoritError) as error:
        study(*arguments, "--out", tmp_path / "runs")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()
