"""Run folders and packed runs with odd but valid JSON: each is listed as damaged, and no other run is hidden."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import favorit
from favorit import FavoritError
from favorit.cli.runs import COLUMNS, _format
from favorit.study.packing import pack, pack_all
from favorit.study.plan import stored_digests
from favorit.study.statistics import confounded, read_variant
from favorit.training.find import open_run
from favorit.training.identity import run_id
from favorit.training.inference import evaluate
from favorit.training.packed import zipped
from favorit.training.records import rows
from training_helpers import fit, tiny

DELETED = object()
VALUES: dict[str, Any] = {
    "deleted": DELETED,
    "null": None,
    "text": "x",
    "empty text": "",
    "list": ["a"],
    "zeros": [0],
    "object": {"a": {"b": 1}},
    "number": 3,
    "negative": -1.5,
    "flag": True,
    "nan": float("nan"),
    "infinite": float("inf"),
    "huge": 10**400,
    "large": 10**30,
}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two complete runs with every optional part of a result, one of them also packed elsewhere."""
    out = tmp_path_factory.mktemp("shelf")
    options = dict(data=dict(augment_test=True, augment="flip"), train=dict(watch="test"))
    for seed in (0, 1):
        fit(out / "runs", tiny(**options, seed=seed))
    return out / "runs"


def victim(shelf: Path) -> str:
    return min(path.name for path in shelf.iterdir())


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in JSON data; of a list, only the first one."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, part in items:
        yield from places(part, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of JSON data with one value changed or deleted."""
    value = json.loads(json.dumps(value))
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    if new is DELETED:
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    return value


def outcome(action: Callable[[], Any]) -> str | None:
    """The error of an action, of one line; None without error. Other exceptions fail the test."""
    try:
        action()
    except FavoritError as error:
        return str(error)
    return None


def read_everywhere(out: Path, name: str, other: str) -> dict[str, Any]:
    """The row of the run `name` in the table of a folder.

    Everything that reads this run raises FavoritError or nothing, and the run `other` is listed.
    """
    found = {row["id"]: row for row in rows(out)}
    assert found.keys() == {name, other}
    assert found[other]["status"] == "complete"
    assert found[name]["status"] in ("complete", "damaged", "failed", "pruned", "stopped")
    assert (found[name]["status"] == "damaged") <= bool(found[name]["error"])
    json.dumps(found[name])
    for key, (_, write) in COLUMNS.items():  # as `favorit runs` prints it
        _format(found[name].get(key), write)
    stored_digests(out)
    run = favorit.Run(open_run(out / name).path)
    actions: list[Callable[[], Any]] = [
        lambda: run.config,
        lambda: run.result,
        lambda: run.epochs,
        lambda: run.predictions,
        lambda: read_variant([out / name]),
        lambda: confounded(run, favorit.Run(open_run(out / other).path)),
    ]
    messages = [outcome(action) for action in actions]
    assert all("\n" not in (message or "") for message in messages)
    return found[name]


@pytest.mark.filterwarnings("ignore:.*was edited after training:UserWarning")
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("file", ["config.json", "result.json", "epochs.jsonl"])
def test_no_odd_value_hides_a_run_or_escapes_as_another_error(shelf, tmp_path: Path, file, kind):
    out = Path(shutil.copytree(shelf, tmp_path / "runs"))
    name, other = sorted(path.name for path in out.iterdir())
    path = out / name / file
    original = path.read_text()
    lines = [json.loads(line) for line in (original.splitlines() if file == "epochs.jsonl" else [original])]
    table = []
    for place in places(lines[0]):
        changed = [replaced(lines[0], place, VALUES[kind]), *lines[1:]]
        path.write_text("".join(json.dumps(line) + "\n" for line in changed))
        table.append(read_everywhere(out, name, other))
        if file == "config.json":
            outcome(lambda: favorit.load(out / name))
    assert str(pandas.DataFrame(table))


@pytest.mark.filterwarnings("ignore:.*was edited after training:UserWarning")
@pytest.mark.parametrize("kind", ["deleted", "text", "nan"])
@pytest.mark.parametrize("file", ["config.json", "result.json", "epochs.jsonl"])
def test_no_odd_value_in_a_packed_run_hides_it(shelf, tmp_path: Path, file, kind):
    out = tmp_path / "packs"
    for path in shelf.iterdir():
        pack(path, out)
    name, other = sorted(path.stem for path in out.iterdir())
    path = out / f"{name}.zip"
    members = dict(open_run(path)._members)
    first, _, rest = members[file].partition(b"\n")
    for place in places(json.loads(first)):
        changed = json.dumps(replaced(json.loads(first), place, VALUES[kind])).encode() + b"\n" + rest
        path.write_bytes(zipped({**members, file: changed}, 8))
        read_everywhere(out, name, other)


NAMED = [
    ("config.json", ("config", "seed"), "x", "seed='x' is not valid"),
    ("config.json", ("config", "model", "depth"), 10**9, "depth=1000000000 is not valid"),
    ("config.json", ("config", "model", "dim"), [8], r"dim=\[8\] is not valid"),
    ("config.json", ("config", "model", "colour"), 1, "unknown field of ModelConfig 'colour'"),
    ("config.json", ("config", "model"), DELETED, "config.model is missing"),
    ("config.json", ("data", "mean"), ["a"], "data.mean='a' is not valid"),
    ("config.json", ("data", "std"), [0, 0, 0], "data.std=0 is not valid: a value above 0"),
    ("config.json", ("data", "std"), [float("nan")] * 3, "data.std=nan is not valid: a finite number"),
    ("config.json", ("data", "std"), [1.0], "data has 3 means and 1 deviations for 3 channels"),
    ("config.json", ("data", "fit"), None, "data.fit=None is not valid: text"),
    ("config.json", ("layers",), None, "layers=None is not valid: text"),
    ("config.json", ("data", "classes"), ["one"], "1 classes and 3 channels for a model with 3 and 3"),
    ("result.json", ("environment",), "x", "environment='x' is not valid"),
    ("result.json", ("flags",), None, "flags=None is not valid"),
    ("result.json", ("test",), None, "test=None is not valid"),
    ("result.json", ("test", "accuracy"), 64, "test.accuracy=64 is not valid: a value of at most 1"),
    ("result.json", ("status",), "done", "status='done' is not valid: complete, failed, pruned"),
    ("result.json", ("parameters",), 10**400, "a number of 300 digits or more"),
]


@pytest.mark.parametrize(("file", "place", "value", "reason"), NAMED, ids=lambda part: str(part)[:20])
def test_damaged_run_is_listed_with_its_reason(shelf, tmp_path: Path, file, place, value, reason):
    out = Path(shutil.copytree(shelf, tmp_path / "runs"))
    path = out / victim(out) / file
    path.write_text(json.dumps(replaced(json.loads(path.read_text()), place, value)))
    table = favorit.runs(out).set_index("id")
    assert sorted(table.status) == ["complete", "damaged"]
    message = table.error[victim(out)]
    assert message.startswith(f"{path} is damaged (")
    assert message.endswith(f"): restore it, or delete {path.parent} and train again")
    with pytest.raises(FavoritError, match=reason):
        evaluate(path.parent)
    (packed,) = [each for each in pack_all(out, tmp_path / "packs") if each.outcome == "broken"]
    assert packed.note == message


def test_file_that_is_a_folder_is_listed_as_damaged(shelf, tmp_path: Path):
    out = Path(shutil.copytree(shelf, tmp_path / "runs"))
    for name in ("config.json", "result.json", "epochs.jsonl"):
        path = out / victim(out) / name
        path.unlink()
        path.mkdir()
        table = favorit.runs(out).set_index("id")
        assert table.error[victim(out)] == f"{path} cannot be read: Is a directory"
        path.rmdir()
        shutil.copy(shelf / victim(out) / name, path)


# Edited configurations.


def edit(path: Path, place: tuple[Any, ...], value: Any) -> None:
    path.write_text(json.dumps(replaced(json.loads(path.read_text()), place, value)))


@pytest.mark.parametrize(
    ("place", "value"), [(("config", "train", "lr"), 0.5), (("config", "seed"), 7), (("data", "mean"), [0.1, 0.2, 0.3])]
)
def test_edited_configuration_is_reported(shelf, tmp_path: Path, place, value):
    out = Path(shutil.copytree(shelf, tmp_path / "runs"))
    path = out / victim(out)
    edit(path / "config.json", place, value)
    table = favorit.runs(out)
    assert table[["edited" in flags.split() for flags in table["flags"]]].id.tolist() == [path.name]
    with pytest.warns(UserWarning, match=f"{path}/config.json was edited after training started"):
        favorit.load(path)
    pack(path, tmp_path / "packs")
    assert favorit.runs(tmp_path / "packs")["flags"][0].split()[-1] == "edited"


def test_edited_configuration_of_an_older_version_is_reported_when_loaded(shelf, tmp_path: Path):
    """Its config.json has no sha256, but the configuration does not have the identifier of the run."""
    out = Path(shutil.copytree(shelf, tmp_path / "runs"))
    path = out / victim(out)
    edit(path / "config.json", ("sha256",), DELETED)
    assert favorit.load(path).classes
    edit(path / "config.json", ("config", "train", "lr"), 0.5)
    with pytest.warns(UserWarning, match="was edited after training started"):
        favorit.load(path)


def test_moved_images_are_no_edit(shelf, tmp_path: Path):
    out = Path(shutil.copytree(shelf, tmp_path / "runs"))
    edit(out / victim(out) / "config.json", ("data", "name"), "folder:elsewhere")
    assert not any("edited" in flags for flags in favorit.runs(out)["flags"])
    assert favorit.load(out / victim(out)).classes


def test_packed_results_hash_to_their_identifiers():
    """Runs of older versions lack newer fields; these are at their defaults, which are left out of the hash."""
    runs = sorted((Path(__file__).parents[2] / "results" / "runs").glob("*.zip"))
    assert len(runs) > 30
    for path in runs:
        saved = open_run(path).config()
        assert run_id(favorit.RunConfig(**saved["config"]), saved["data"]["digest"]) == path.stem


# Predictions.


@pytest.mark.parametrize(
    "arrays",
    [
        dict(logits=np.zeros((48, 3)), labels=np.zeros(47, int)),
        dict(logits=np.zeros(48), labels=np.zeros(48, int)),
        dict(logits=np.zeros((0, 3)), labels=np.zeros(0, int)),
        dict(logits=np.full((48, 3), np.nan), labels=np.zeros(48, int)),
        dict(logits=np.zeros((48, 3), int), labels=np.zeros(48)),
        dict(logits=np.zeros((48, 3))),
    ],
    ids=["lengths", "one axis", "no images", "nan", "types", "no labels"],
)
def test_odd_predictions_are_named(shelf, tmp_path: Path, arrays):
    path = Path(shutil.copytree(shelf / victim(shelf), tmp_path / victim(shelf)))
    np.savez(path / "predictions.npz", **arrays)
    with pytest.raises(FavoritError, match=f"{path}/predictions.npz cannot be read .*: delete the run and train again"):
        read_variant([path])
