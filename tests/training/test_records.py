"""The runs of a folder as a table: one row for each run in any state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas
import pytest

import favorit
from favorit import FavoritError
from favorit.training.folder import RunFolder
from training_helpers import fit, tiny


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run, a failed run, and a run that was stopped in its second epoch."""
    out = tmp_path_factory.mktemp("shelf")
    fit(out, tiny())
    with pytest.raises(FavoritError):
        fit(out, tiny(train=dict(lr=1e30)))

    def stop(event, _):
        if getattr(event, "epoch", 0) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        favorit.train(tiny(seed=3), out=out, listen=stop)
    return out


def by_status(table: pandas.DataFrame) -> dict[str, pandas.Series]:
    return {row["status"]: row for _, row in table.iterrows()}


def test_complete_failed_and_stopped_runs_have_rows(shelf):
    table = favorit.runs(shelf)
    assert isinstance(table, pandas.DataFrame)
    rows = by_status(table)
    assert sorted(rows) == ["complete", "failed", "stopped"]
    complete = rows["complete"]
    result = favorit.Run(shelf / complete["id"]).result
    assert complete["test.accuracy"] == result["test"]["accuracy"]
    assert complete["validation.accuracy"] == result["validation"]["accuracy"]
    for column in ("epochs", "parameters", "flops", "peak_memory", "train_seconds_per_epoch", "images_per_second"):
        assert complete[column] == result[column]
    assert "the loss became nan" in rows["failed"]["error"]
    assert (rows["stopped"]["seed"], rows["stopped"]["epochs"]) == (3, 1)
    assert pandas.isna(rows["stopped"]["test.accuracy"])


def test_every_field_of_the_configuration_is_a_column(shelf):
    table = favorit.runs(shelf)
    sections = {"model": favorit.ModelConfig, "data": None, "train": None}
    config = favorit.Run(shelf / table.id[0]).config
    for section in sections:
        for field in type(getattr(config, section)).model_fields:
            assert f"{section}.{field}" in table
    assert set(table["train.lr"]) == {0.01, 1e30}
    assert set(table["model.dim"]) == {8}
    assert "schema" not in table


def test_locked_run_has_status_training(shelf):
    (stopped,) = favorit.runs(shelf).query("status == 'stopped'").id
    with RunFolder(shelf / stopped).lock():
        assert favorit.runs(shelf).query(f"id == '{stopped}'").status.tolist() == ["training"]
    assert favorit.runs(shelf).query(f"id == '{stopped}'").status.tolist() == ["stopped"]


@pytest.mark.parametrize("name", ["config.json", "result.json", "epochs.jsonl"])
@pytest.mark.parametrize("junk", ["{\n", "[]\n", "{}\n"], ids=["cut", "a list", "empty"])
def test_damaged_run_does_not_hide_the_others(shelf, tmp_path: Path, name, junk):
    if name == "epochs.jsonl" and junk != "{\n":
        junk = "x\n"
    out = Path(shutil.copytree(shelf, tmp_path / "runs"))
    victim = by_status(favorit.runs(out))["complete"]["id"]
    (out / victim / name).write_text(junk)
    rows = by_status(favorit.runs(out))
    assert sorted(rows) == ["damaged", "failed", "stopped"]
    assert rows["damaged"]["id"] == victim
    assert str(out / victim / name) in rows["damaged"]["error"]


def test_missing_section_is_damage(shelf, tmp_path: Path):
    out = Path(shutil.copytree(shelf, tmp_path / "runs"))
    victim = out / by_status(favorit.runs(out))["complete"]["id"] / "config.json"
    saved = json.loads(victim.read_text())
    del saved["config"]["train"]
    victim.write_text(json.dumps(saved))
    assert sorted(by_status(favorit.runs(out))) == ["damaged", "failed", "stopped"]


def test_folders_and_files_that_are_not_runs_are_not_listed(shelf, tmp_path: Path):
    out = Path(shutil.copytree(shelf, tmp_path / "runs"))
    (out / "tensorboard").mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "0123456789abcdef").mkdir()
    (out / "0123456789abcdef" / "lock").touch()
    assert len(favorit.runs(out)) == 3


def test_empty_folder_gives_an_empty_table_and_a_missing_one_an_error(tmp_path: Path):
    assert favorit.runs(tmp_path).empty
    with pytest.raises(FavoritError, match="nowhere does not exist: give a folder of runs"):
        favorit.runs(tmp_path / "nowhere")


def test_reading_runs_changes_no_file(shelf):
    before = {path: path.stat().st_mtime_ns for path in shelf.rglob("*")}
    favorit.runs(shelf)
    assert {path: path.stat().st_mtime_ns for path in shelf.rglob("*")} == before


def test_environment_of_the_times_is_in_the_table(shelf):
    """Times are compared only between runs with the same environment."""
    row = by_status(favorit.runs(shelf))["complete"]
    environment = favorit.Run(shelf / row["id"]).result["environment"]
    known = {key: value for key, value in environment.items() if value is not None}
    assert {key: row[f"environment.{key}"] for key in known} == known
    assert {"environment.threads", "environment.processor", "environment.torch", "environment.workers"} <= set(
        row.index
    )
    assert row["batch_seconds"] > 0
