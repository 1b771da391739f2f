"""Curves of `--tensorboard`: each epoch is written once, also after kills and resumes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from favorit.cli.tensorboard import Curves
from favorit.smoothing import smooth
from favorit.training import Run
from favorit.training.folder import RunFolder
from training_helpers import fit, tiny


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return fit(tmp_path / "runs", tiny(train=dict(epochs=4)))[0]


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """All points of each curve, in the order written."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder)).Reload()
    return {tag: [(point.step, point.value) for point in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def steps(folder: Path) -> set[tuple[int, ...]]:
    return {tuple(step for step, _ in curve) for curve in points(folder).values()}


@pytest.fixture
def partial_run(tmp_path: Path, run: Run) -> Callable[[int], Path]:
    """Builds the folder of the run as it was after some epochs."""

    def build(epochs: int) -> Path:
        folder = RunFolder(tmp_path / "part" / run.id)
        folder.path.mkdir(parents=True, exist_ok=True)
        (folder.path / "epochs.jsonl").unlink(missing_ok=True)
        for record in run.epochs[:epochs]:
            folder.append_epoch(record)
        return folder.path

    return build


def test_curves_contain_the_records_and_the_smoothed_validation_loss(tmp_path: Path, run: Run):
    with closing(Curves(tmp_path / "tb")) as curves:
        curves.begin(run.path)
    found = points(tmp_path / "tb" / run.id)
    assert set(found) == {
        "lr",
        "loss/train",
        "accuracy/train",
        "loss/validation",
        "accuracy/validation",
        "loss/validation_smoothed",
    }
    losses = [record["validation_loss"] for record in run.epochs]
    assert [value for _, value in found["loss/validation"]] == pytest.approx(losses, rel=1e-6)
    assert [value for _, value in found["loss/validation_smoothed"]] == pytest.approx(smooth(losses), rel=1e-6)
    assert steps(tmp_path / "tb" / run.id) == {(1, 2, 3, 4)}


def test_resumed_run_writes_each_epoch_once(tmp_path: Path, run: Run, partial_run: Callable[[int], Path]):
    for known, written in ((0, 2), (2, 3), (3, 4)):
        with closing(Curves(tmp_path / "tb")) as curves:
            curves.begin(partial_run(known))
            for record in run.epochs[known:written]:
                curves.add(run.id, record)
    assert steps(tmp_path / "tb" / run.id) == {(1, 2, 3, 4)}
    smoothed = [value for _, value in points(tmp_path / "tb" / run.id)["loss/validation_smoothed"]]
    assert smoothed == pytest.approx(smooth([record["validation_loss"] for record in run.epochs]), rel=1e-6)


def test_epoch_on_disk_that_also_arrives_as_an_event_is_written_once(
    tmp_path: Path, run: Run, partial_run: Callable[[int], Path]
):
    with closing(Curves(tmp_path / "tb")) as curves:
        curves.begin(partial_run(2))
        for record in run.epochs[1:]:
            curves.add(run.id, record)
    assert steps(tmp_path / "tb" / run.id) == {(1, 2, 3, 4)}


def test_points_lost_in_a_kill_are_written_on_resume(tmp_path: Path, run: Run, partial_run: Callable[[int], Path]):
    with closing(Curves(tmp_path / "tb")) as curves:
        curves.begin(partial_run(2))
    (file,) = (tmp_path / "tb" / run.id).iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    assert steps(tmp_path / "tb" / run.id) != {(1, 2)}
    with closing(Curves(tmp_path / "tb")) as curves:
        curves.begin(partial_run(3))
    assert steps(tmp_path / "tb" / run.id) == {(1, 2, 3)}


def test_any_loss_and_accuracy_of_a_record_becomes_a_curve(tmp_path: Path, run: Run):
    record: dict[str, Any] = {
        **run.epochs[0],
        "test_loss": 1.5,
        "test_accuracy": None,
        "validation_loss": None,
        "scalars": {"blocks.0.a": 0.25},
    }
    with closing(Curves(tmp_path / "tb")) as curves:
        curves.begin(tmp_path / "nothing there")
        curves.add("nothing there", record)
    found = points(tmp_path / "tb" / "nothing there")
    assert found["loss/test"] == [(1, 1.5)]
    assert found["blocks.0.a"] == [(1, 0.25)]
    assert not {"accuracy/test", "loss/validation", "loss/validation_smoothed"} & set(found)
