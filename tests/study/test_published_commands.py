"""`study status`, `study run` and `compare` show published numbers next to ours."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from favorit import FavoritError
from favorit.cli.study import app
from favorit.study import Options, load_study
from favorit.study.plan import index_path
from favorit.study.references import mapped_rows
from favorit.training.folder import RunFolder
from saved_data import RESULT

Command = Callable[..., str]
STANDARD = "data=cifar10 layout=all_standard"


@pytest.fixture
def status(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs `favorit study status hybrids` on the runs in tmp_path and returns its output."""

    def run(*arguments: str) -> str:
        app(["status", "hybrids", "--out", str(tmp_path), *arguments], standalone_mode=False)
        return capsys.readouterr().out

    return run


def index(out: Path, options: Options) -> dict[str, str]:
    """Writes an index with made-up identifiers, so that the command needs no data."""
    study = load_study("hybrids")
    path = index_path(study, options, out)
    path.parent.mkdir(parents=True, exist_ok=True)
    points = [[point.name, point.group, f"{number:016x}"] for number, point in enumerate(study.named(options))]
    path.write_text(json.dumps({"schema": 1, "points": points}))
    return {name: identifier for name, _, identifier in points}


def write(out: Path, identifier: str, accuracy: float, **more: Any) -> None:
    folder = RunFolder(out / identifier)
    folder.path.mkdir(parents=True)
    result: dict[str, Any] = {
        **RESULT,
        "epochs": 50,
        "test": {**RESULT["test"], "accuracy": accuracy},
        "train_accuracy": 0.9,
        "train_seconds_per_epoch": 14.181,
        "parameters": 142026,
        "flags": ["augmented-test"],
        "environment": {"workers": 1, "nice": 0},
    }
    folder.write_result({**result, **more})


def line(output: str, start: str) -> str:
    """The only line before the table of means that starts with a text."""
    points = output.partition("mean over seeds and folds\n")[0]
    (found,) = [line for line in points.splitlines() if line.startswith(start)]
    return found


def test_status_shows_published_accuracy_and_difference(tmp_path: Path, status: Command):
    ids = index(tmp_path, Options())
    write(tmp_path, ids[STANDARD], 0.7396)
    output = status()
    assert re.search(r"complete +50 +73\.96% +72\.96% +\+1\.00$", line(output, f"{STANDARD} "))
    missing = line(output, "data=mnist layout=all_performer performer=relu(m=16) ")
    assert re.search(r"missing +98\.58%$", missing), "published without ours"
    assert output.splitlines()[0] == "hybrids: scale published; protocol published"
    assert "augmented-test: test images are augmented like training images (all 1 runs)" in output


def test_status_of_several_seeds_shows_mean_and_interval(tmp_path: Path, status: Command):
    ids = index(tmp_path, Options(seeds=(0, 1)))
    for seed, accuracy in ((0, 0.72), (1, 0.74)):
        write(tmp_path, ids[f"{STANDARD} seed={seed}"], accuracy)
    output = status("--seeds", "0,1")
    together = output.split("mean over seeds and folds\n")[1]
    assert re.search(r" 2 +73\.00% +1\.41% +60\.29% to 85\.71% +72\.96% +\+0\.04 ", line(together, f"{STANDARD} "))


def test_status_of_one_seed_shows_the_means_too(tmp_path: Path, status: Command):
    ids = index(tmp_path, Options())
    write(tmp_path, ids[STANDARD], 0.7396)
    together = status().split("mean over seeds and folds\n")[1]
    assert re.search(r" 1 +73\.96% +72\.96% +\+1\.00 ", line(together, f"{STANDARD} "))
    assert "all_performer" not in together.partition("\n\n")[0], "text has no row without a run"


def test_status_as_csv_has_a_row_for_each_group(tmp_path: Path, status: Command):
    ids = index(tmp_path, Options(seeds=(0, 1)))
    write(tmp_path, ids[f"{STANDARD} seed=0"], 0.7396)
    rows = list(csv.DictReader(io.StringIO(status("--seeds", "0,1", "--csv"))))
    assert len(rows) == len(ids) // 2
    (own,) = (row for row in rows if row["point"] == STANDARD)
    assert (own["runs"], own["missing"], own["test"]) == ("1", "1", "73.96%")
    assert {(row["runs"], row["missing"], row["test"]) for row in rows if row["point"] != STANDARD} == {("0", "2", "")}


def test_status_shows_flags_of_runs_that_differ(tmp_path: Path, status: Command):
    ids = index(tmp_path, Options())
    write(tmp_path, ids[STANDARD], 0.73)
    write(tmp_path, ids["data=mnist layout=all_standard"], 0.98, flags=["augmented-test", "watched"])
    output = status()
    assert line(output, "data=mnist layout=all_standard ").endswith("augmented-test watched")
    assert "watched: the test set was evaluated after each epoch, but not used for selection (1 of 2 runs)" in output


def test_best_test_column_appears_only_for_watched_runs(tmp_path: Path, status: Command):
    ids = index(tmp_path, Options())
    write(tmp_path, ids[STANDARD], 0.73, best_test=None)
    assert "test-selected" not in status()
    write(
        tmp_path, ids["data=mnist layout=all_standard"], 0.98, best_test={"accuracy": 0.985, "loss": 0.1, "epoch": 40}
    )
    output = status()
    assert "best test (test-selected)" in output
    assert "98.50%" in line(output, "data=mnist layout=all_standard ")


def test_heading_shows_the_scale_of_shortened_runs(tmp_path: Path, status: Command):
    options = Options(protocol="sound", epochs=2, subset=64)
    index(tmp_path, options)
    output = status("--protocol", "sound", "--epochs", "2", "--subset", "64")
    assert output.splitlines()[0] == "hybrids: scale published, 2 epochs, 64 images; protocol sound"


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("more", [[], ["--published"]])
def test_tables_fit_the_terminal(
    tmp_path: Path, status: Command, monkeypatch: pytest.MonkeyPatch, width: int, more: list[str]
):
    for number, identifier in enumerate(index(tmp_path, Options()).values()):
        write(
            tmp_path,
            identifier,
            0.7,
            flags=["watched"] * (number % 2),
            best_test={"accuracy": 0.71, "loss": 1.0, "epoch": 3},
        )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    table, _, _ = status(*more).partition("\nnot shown on")
    rows = table.splitlines()[1:]
    assert len(rows) > 94
    assert max(map(len, rows)) <= width
    assert "published" in rows[0]
    assert "diff" in rows[0]


def test_published_option_prints_every_quantity_with_place_and_notes(tmp_path: Path, status: Command):
    write(tmp_path, index(tmp_path, Options(only=STANDARD))[STANDARD], 0.7396)
    output = status("--published", "--only", STANDARD)
    accuracy, _, epoch, batch = [" ".join(row.split()) for row in output.split(STANDARD)[1].splitlines()[1:5]]
    flags = "augmented-test last-epoch text-differs"
    assert accuracy == f"test accuracy, % 72.96 73.96 +1.00 1 Apple M3 (MPS) {flags} section 6, Table 2"
    assert epoch.startswith("training time per epoch, s 28.362 14.18 0.50x 1 Apple"), "a ratio and no difference"
    assert batch.startswith("inference time per batch of 128, ms 12.3959 Apple"), "ours is blank"
    assert "naive-softmax: softmax is the naive form, not a fused kernel" in output
    assert "hybrids: Bennouna, Yang, Shao, Souaid: Hybrid Transformer Models" in output
    assert "no point for synthetic_imagenet, row 1, 2, 3, 4, 5, 6, 7, 8, 9: times at 224x224" in output


def test_json_has_every_published_number(tmp_path: Path, status: Command):
    write(tmp_path, index(tmp_path, Options())[STANDARD], 0.7396)
    printed = json.loads(status("--published", "--json"))
    assert (len(printed["published"]), len(printed["unmatched"])) == (360, 9)
    (accuracy,) = [
        each for each in printed["published"] if (each["point"], each["quantity"]) == (STANDARD, "test accuracy")
    ]
    assert accuracy["published"] == 72.96
    assert accuracy["difference"] == pytest.approx(1.0)
    assert (accuracy["table"], accuracy["row"], accuracy["unit"], accuracy["hardware"]) == (
        "hybrids",
        90,
        "%",
        "Apple M3 (MPS)",
    )


def test_json_without_published_lists_the_points(tmp_path: Path, status: Command):
    write(tmp_path, index(tmp_path, Options())[STANDARD], 0.7396)
    output = json.loads(status("--json"))
    assert (output["study"], output["scale"], output["protocol"]) == ("hybrids", "published", "published")
    points = {each["name"]: each for each in output["points"]}
    assert (points[STANDARD]["status"], points[STANDARD]["accuracy"], len(points)) == (
        "complete",
        0.7396,
        len(load_study("hybrids").points),
    )
    assert (points[STANDARD]["published"], points[STANDARD]["flags"]) == ([72.96], ["augmented-test"])
    (group,) = output["groups"]
    assert (group["group"], group["mean"], group["n"], group["published"]) == (STANDARD, 0.7396, 1, [72.96])
    assert any("naive softmax" in note for note in output["notes"])


def test_duplicate_published_row_is_a_one_line_error_and_the_rest_is_shown(
    tmp_path: Path, status: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def read(name: str) -> Any:
        raise FavoritError(f"published table {name}: rows 1 and 2 are both m=16: remove one")

    write(tmp_path, index(tmp_path, Options())[STANDARD], 0.7396)
    monkeypatch.setattr("favorit.published.read", read)
    mapped_rows.cache_clear()
    app(["status", "hybrids", "--out", str(tmp_path)], standalone_mode=False)
    out, err = capsys.readouterr()
    assert err == "published numbers are not shown: published table hybrids: rows 1 and 2 are both m=16: remove one\n"
    assert line(out, f"{STANDARD} ").endswith("73.96%")
    with pytest.raises(FavoritError, match="rows 1 and 2 are both m=16"):
        status("--published")


def test_study_without_published_numbers_prints_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    app(["status", "quickstart", "--out", str(tmp_path), "--published"], standalone_mode=False)
    assert capsys.readouterr().out == "study quickstart: no published numbers for these points\n"
