"""Runs are found by path, or by the start of an identifier or name; names are recorded, indexed or made up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import favorit
from favorit import FavoritError
from favorit.study import Options, run
from favorit.study.statistics import read_variant
from favorit.training.find import find_variant, open_run, stored_names
from favorit.training.folder import RunFolder
from training_helpers import fit, tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with recorded names: relu with two seeds, relu(m=8), and one packed run."""
    out = tmp_path_factory.mktemp("find") / "runs"
    for seed in (0, 1):
        fit(
            out,
            tiny(model=dict(layout="relu"), train=dict(epochs=1), seed=seed),
            name=f"layout=relu seed={seed}",
            study="kernels",
        )
    fit(out, tiny(model=dict(layout="relu(m=8)"), train=dict(epochs=1)), name="layout=relu(m=8) seed=0")
    unpacked, _ = fit(out.parent / "elsewhere", tiny(train=dict(epochs=1)), name="layout=softmax")
    favorit.pack(unpacked, out)
    return out


def by_name(folder: Path) -> dict[str, str]:
    return {name.name: identifier for identifier, name in stored_names(folder).items()}


@pytest.mark.parametrize("kind", ["folder", "packed"])
def test_unique_start_of_an_identifier_opens_the_run(folder: Path, kind: str):
    identifier = by_name(folder)["layout=softmax" if kind == "packed" else "layout=relu seed=1"]
    others = [each for each in by_name(folder).values() if each != identifier]
    shortest = next(identifier[:n] for n in range(1, 17) if not any(each.startswith(identifier[:n]) for each in others))
    for text in (shortest, identifier[:12], identifier):
        assert open_run(text, folder).id == identifier
        assert open_run(folder / text).id == identifier, "also with the folder"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("layout=relu(", "layout=relu(m=8) seed=0"),
        ("layout=relu seed=1", "layout=relu seed=1"),
        ("layout=s", "layout=softmax"),
    ],
)
def test_unique_start_of_a_name_opens_the_run(folder: Path, text: str, name: str):
    assert open_run(text, folder).id == by_name(folder)[name]
    assert open_run(folder / text).id == by_name(folder)[name]


def test_complete_name_wins_over_longer_names(tmp_path: Path):
    for name, seed in (("seed=1", 1), ("seed=10", 10)):
        fit(tmp_path, tiny(train=dict(epochs=1), seed=seed), name=name)
    assert open_run("seed=1", tmp_path).config()["config"]["seed"] == 1


def test_runs_are_looked_up_in_the_folder_runs_by_default(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder.parent)
    identifier = by_name(folder)["layout=relu seed=0"]
    assert favorit.load("layout=relu seed=0").classes
    assert favorit.Run(Path(identifier[:12])).id == identifier
    assert favorit.Run(Path(identifier[:12])).result["status"] == "complete"


def test_start_of_several_runs_is_an_error_that_lists_them(folder: Path):
    ids = by_name(folder)
    with pytest.raises(FavoritError) as error:
        open_run("layout=relu", folder)
    listed = ", ".join(sorted(f"{ids[name]} ({name})" for name in ids if name.startswith("layout=relu")))
    assert str(error.value) == f"layout=relu is the start of 3 runs in {folder}: {listed}: write more characters"


def test_unknown_run_is_an_error_with_the_nearest_name(folder: Path):
    with pytest.raises(FavoritError) as error:
        open_run("layout=softmx", folder)
    assert "layout=softmx is not a run: there is no such folder, and no run in" in str(error.value)
    assert "did you mean 'layout=softmax'? `favorit runs" in str(error.value)
    assert "\n" not in str(error.value)


def test_start_of_a_variant_stands_for_all_its_seeds(folder: Path):
    ids = by_name(folder)
    assert {run.id for run in find_variant("layout=relu", folder)} == {
        ids["layout=relu seed=0"],
        ids["layout=relu seed=1"],
    }
    assert len(read_variant("layout=relu", folder).runs) == 2
    with pytest.raises(FavoritError, match="layout=rel is the start of 3 runs"):
        find_variant("layout=rel", folder)


def test_name_and_study_do_not_change_the_identifier_and_survive_a_resume(tmp_path: Path):
    config = tiny(train=dict(epochs=1))
    named, _ = fit(tmp_path / "named", config, name="mine", study="thesis")
    plain, _ = fit(tmp_path / "plain", config)
    assert named.id == plain.id
    (named.path / "result.json").unlink()
    before = RunFolder(named.path).config()
    fit(tmp_path / "named", config)
    after = RunFolder(named.path).config()
    assert {key: after[key] for key in ("name", "study", "started")} == {
        "name": "mine",
        "study": "thesis",
        "started": before["started"],
    }
    assert not {"name", "study"} & RunFolder(plain.path).config().keys()


def test_run_without_a_name_is_called_after_data_layers_and_seed(tmp_path: Path):
    fit(tmp_path, tiny(train=dict(epochs=1), seed=3, data=dict(folds=2, fold=1)))
    (name,) = stored_names(tmp_path).values()
    assert name.name.endswith(" softmax seed=3 fold=1")
    assert (name.variant, name.study) == (name.name.removesuffix(" seed=3 fold=1"), "")


def test_runs_of_a_study_record_their_study_and_point(tmp_path: Path):
    options = Options(scale="smoke", seeds=(0, 1), only="uniform")
    run("quickstart", tmp_path, options=options)
    table = favorit.runs(tmp_path)
    assert set(table["study"]) == {"quickstart"}
    assert sorted(table["name"]) == ["layout=uniform seed=0", "layout=uniform seed=1"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", date) for date in table["date"])
    # Runs of older versions have no name: the index of the study has it.
    for path in tmp_path.glob("*/config.json"):
        saved = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("name", "study")}
        path.write_text(json.dumps(saved))
    assert favorit.runs(tmp_path)[["study", "name", "date"]].equals(table[["study", "name", "date"]])
    for index in tmp_path.glob(".studies/*/*.json"):
        index.write_text('{"schema": 1, "points": [1, null]}')
    assert favorit.runs(tmp_path)["study"].isna().all()
    assert favorit.runs(tmp_path)["name"].str.startswith("digits uniform seed=").all()


def test_damaged_run_does_not_hide_the_names_of_others(folder: Path, tmp_path: Path):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    fit(tmp_path, tiny(train=dict(epochs=1)), name="whole")
    assert open_run("who", tmp_path).config()["name"] == "whole"
