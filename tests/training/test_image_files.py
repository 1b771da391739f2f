"""Runs on folders of image files: shapes, unreadable files, and tests after files have changed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import favorit
from favorit import FavoritError
from favorit.cli.main import app
from favorit.data import load_dataset, read_image
from favorit.training import Begin
from favorit.training.inference import evaluate, load_data, predict_files
from favorit.training.loaders import subset_tested
from training_helpers import fit, photos, tiny

RUNNER = CliRunner()
COUNTS = {"a": 24, "b": 24}


def on(name: str, **data: Any) -> favorit.RunConfig:
    return tiny(data=dict(name=name, validation=0.2, **data), train=dict(epochs=1))


def recorded(run: favorit.Run) -> list[str]:
    return list(json.loads((run.path / "test_files.json").read_text())["files"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return photos(tmp_path / "images", COUNTS)


@pytest.mark.parametrize(
    ("name", "preprocess", "kind"),
    [
        ("folder('{}', image_size=16)", None, "crop"),
        ("folder('{}', image_size=16, fit=letterbox)", None, "letterbox"),
        ("folder:{}", "letterbox(16)", "letterbox"),
        ("folder:{}", "resize(16)", "resize"),
        ("folder:{}", "crop(16, 16)|normalise(0.5, 0.5)", "crop"),
    ],
)
def test_files_are_trained_on_evaluated_and_predicted_with_the_same_pixels(
    tmp_path: Path, folder: Path, name: str, preprocess: str | None, kind: str
) -> None:
    run, _ = fit(tmp_path / "runs", on(name.format(folder), preprocess=preprocess))
    assert evaluate(run.path)["test"] == run.result["test"]
    data, trained = load_data(run.path), favorit.load(run)
    assert (data.image_size, data.fit, trained.fit) == ((16, 16), kind, kind)
    assert data.files is not None
    for file, image in zip(data.files.test, data.test.images, strict=True):
        assert torch.equal(read_image(folder / file, (16, 16), 3, kind), image)
    expected = trained.probabilities(data.test.images).max(1).values.tolist()
    found = [each.classes[0][1] for each in predict_files(run.path, [folder / file for file in data.files.test])]
    assert found == pytest.approx(expected)


def test_size_in_the_data_and_in_the_preprocessing_is_rejected(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(FavoritError, match=r"data.name has fit=crop and data.preprocess has letterbox\(16\): give one"):
        fit(tmp_path / "runs", on(f"folder('{folder}', fit=crop)", preprocess="letterbox(16)"))


def test_run_without_a_fit_was_squeezed_and_is_evaluated_and_predicts_so(tmp_path: Path) -> None:
    """As written by favorit 0.1.0: no `fit` in the card, no test files. Class c has no test image."""
    folder = photos(tmp_path / "images", {"a": 40, "b": 40, "c": 2})
    run, _ = fit(tmp_path / "runs", on(f"folder('{folder}', image_size=16, legacy=True)"))
    squeezed = load_dataset(f"folder('{folder}', image_size=16, legacy=True)")
    assert torch.bincount(squeezed.test.labels, minlength=3)[2] == 0
    path = run.path / "config.json"
    saved = json.loads(path.read_text())
    del saved["data"]["fit"], saved["sha256"]
    saved["data"]["name"] = saved["config"]["data"]["name"] = f"folder('{folder}', image_size=16)"
    path.write_text(json.dumps(saved))
    (run.path / "test_files.json").unlink()
    assert evaluate(run.path)["test"] == run.result["test"]
    assert squeezed.files is not None
    file = folder / squeezed.files.test[0]
    expected = favorit.load(run).probabilities(read_image(file, (16, 16), 3, "resize")[None]).max().item()
    assert predict_files(run.path, [file])[0].classes[0][1] == pytest.approx(expected)


@pytest.mark.parametrize("harm", ["delete", "damage", "change", "add"])
def test_changed_training_file_does_not_block_evaluate(tmp_path: Path, folder: Path, harm: str) -> None:
    run, _ = fit(tmp_path / "runs", on(f"folder('{folder}', image_size=16)"))
    file = next(path for path in sorted(folder.rglob("*.png")) if str(path.relative_to(folder)) not in recorded(run))
    if harm == "delete":
        file.unlink()
    elif harm == "damage":
        file.write_bytes(file.read_bytes()[:60])
    else:
        target = file if harm == "change" else folder / "a" / "new.png"
        target.write_bytes((folder / recorded(run)[0]).read_bytes())
    assert evaluate(run.path)["test"] == run.result["test"]


@pytest.mark.parametrize("subset", [None, 6])
def test_changed_test_images_are_an_error_or_left_out_and_named(
    tmp_path: Path, folder: Path, subset: int | None
) -> None:
    run, _ = fit(tmp_path / "runs", on(f"folder('{folder}', image_size=16)", test_subset=subset))
    chosen = subset_tested(run.config, load_data(run.path)).tolist()
    names = [recorded(run)[index] for index in chosen[:3]]
    first, second, third = (folder / name for name in names)
    first.unlink()
    second.write_bytes(b"broken")
    third.write_bytes((folder / recorded(run)[chosen[-1]]).read_bytes())
    what = f"3 of {len(chosen)} test images of"
    match = rf"{what} .* are missing, unreadable or changed: {', '.join(names)}: restore them, or test"
    with pytest.raises(FavoritError, match=match):
        evaluate(run.path)
    found = evaluate(run.path, skip_unreadable=True)
    assert found["skipped"] == names
    assert "incomplete-test" in found["flags"]
    assert sum(map(sum, found["test"]["confusion"])) == (7 if subset is None else 3)
    shown = RUNNER.invoke(app, ["evaluate", str(run.path), "--skip-unreadable"])
    assert f"left out, because missing, unreadable or changed: {', '.join(names)}" in shown.output
    assert "this is not the accuracy of the run" in shown.output


def test_evaluate_without_any_test_image_left_is_an_error(tmp_path: Path, folder: Path) -> None:
    run, _ = fit(tmp_path / "runs", on(f"folder('{folder}', image_size=16)"))
    for file in recorded(run):
        (folder / file).unlink()
    with pytest.raises(FavoritError, match=r"10 of 10 test images .*: restore them; the accuracy of the run is in"):
        evaluate(run.path, skip_unreadable=True)
    folder.rename(tmp_path / "moved")
    with pytest.raises(FavoritError, match="images: folder not found: the test images of the run were there; move it"):
        evaluate(run.path)


def test_skipped_files_are_in_the_result_and_the_run_is_that_of_the_other_files(tmp_path: Path, folder: Path) -> None:
    (folder / "a" / "half.png").write_bytes((folder / "a" / "001.png").read_bytes()[:60])
    config = on(f"folder('{folder}', image_size=16)")
    with pytest.raises(FavoritError, match=r"1 of 49 images cannot be read: a/half.png: .* --skip-unreadable"):
        fit(tmp_path / "runs", config)
    run, events = fit(tmp_path / "runs", config.replace(data=config.data.replace(skip_unreadable=True)))
    assert run.result["skipped"] == ["a/half.png"]
    assert isinstance(events[0], Begin)
    assert events[0].notes[0] == "skipped 1 unreadable file: a/half.png"
    assert evaluate(run.path)["test"] == run.result["test"]
    (folder / "a" / "half.png").unlink()
    assert fit(tmp_path / "runs", config)[0] == run


def test_skip_unreadable_is_an_option_of_train_and_data_show(tmp_path: Path, folder: Path) -> None:
    (folder / "b" / "broken.jpg").write_bytes(b"")
    fields = [f"--set={key}" for key in ("model.stem=patch(8)", "model.dim=8", "model.heads=2", "data.validation=0.2")]
    command = ["train", "--data", f"folder:{folder}", "--epochs", "1", "--out", str(tmp_path / "runs"), *fields]
    assert isinstance(RUNNER.invoke(app, command).exception, FavoritError)
    trained = RUNNER.invoke(app, [*command, "--skip-unreadable"])
    assert "note: skipped 1 unreadable file: b/broken.jpg" in trained.output
    assert "top 5" not in trained.output
    (run,) = (tmp_path / "runs").iterdir()
    assert "top 5" not in RUNNER.invoke(app, ["evaluate", str(run)]).output
    shown = RUNNER.invoke(
        app, ["data", "show", f"folder:{folder}", "--out", str(tmp_path / "out.png"), "--skip-unreadable"]
    )
    assert "note: skipped 1 unreadable file: b/broken.jpg" in shown.output


def test_study_skips_unreadable_files_and_names_them(tmp_path: Path, folder: Path) -> None:
    (folder / "b" / "broken.jpg").write_bytes(b"")
    study = tmp_path / "mine.py"
    base = {"data.name": f"folder:{folder}", "data.preprocess": "crop(16)", "model.stem": "patch(8)"}
    study.write_text(
        "from favorit.study import Study, product\n"
        f"STUDY = Study('mine', 'Is it?', {base!r}, product({{'model.layout': ['softmax', 'relu']}}))\n"
    )
    command = ["study", "plan", str(study), "--no-estimate", "--out", str(tmp_path / "runs")]
    error = RUNNER.invoke(app, command).exception
    assert "1 of 49 images cannot be read: b/broken.jpg" in str(error)
    planned = RUNNER.invoke(app, [*command, "--skip-unreadable"])
    assert f"note: folder:{folder}: skipped 1 unreadable file: b/broken.jpg" in planned.output.replace("\n", "")


def test_few_images_of_a_class_are_noted(tmp_path: Path, folder: Path) -> None:
    _, (begin, *_) = fit(tmp_path / "runs", on(f"folder('{folder}', image_size=16)"))
    assert isinstance(begin, Begin)
    assert begin.notes == (
        "few images per class: the smallest, 'a', has 15 for training, so results depend much on the split and the "
        "seed: add images, or take the mean of --folds 5 or several seeds",
    )
    _, (begin, *_) = fit(tmp_path / "runs", tiny(train=dict(epochs=1)))
    assert begin == Begin(begin.path, 0)


@pytest.mark.parametrize("fit_value", ["squeeze", 5, ["crop"]])
def test_damaged_fit_or_test_files_are_named(tmp_path: Path, folder: Path, fit_value: Any) -> None:
    run, _ = fit(tmp_path / "runs", on(f"folder('{folder}', image_size=16)"))
    files, config = run.path / "test_files.json", run.path / "config.json"
    for content in ("[]", '{"schema": 1}', '{"schema": 1, "files": {}}', '{"schema": 1, "files": {"x/1.png": 1}}'):
        files.write_text(content)
        with pytest.raises(FavoritError, match=r"test_files.json is damaged"):
            evaluate(run.path)
    saved = json.loads(config.read_text())
    del saved["sha256"]
    saved["data"]["fit"] = fit_value
    config.write_text(json.dumps(saved))
    with pytest.raises(
        FavoritError,
        match=r"config.json is damaged \((fit .* is not one of resize, crop, letter|data.fit=.*: text)",
    ):
        evaluate(run.path)


def test_batch_of_enlarged_images_that_does_not_fit_into_memory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FavoritError, match=r"letterbox\(1000000\): a batch of 16 images of 1000000 x 1000000 needs"):
        fit(tmp_path / "runs", tiny(data=dict(preprocess="letterbox(1000000)")))
    assert not (tmp_path / "runs").exists()


def test_missing_folder_of_a_relative_path_is_named_once(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    run, _ = fit(tmp_path / "runs", on(f"folder('{folder.name}', image_size=16)"))
    folder.rename(tmp_path / "moved")
    with pytest.raises(FavoritError, match=rf"^{folder.name}: folder not found"):
        evaluate(run.path)


def test_run_named_by_a_prefix_is_evaluated_on_its_own_test_files(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = fit(tmp_path / "runs", on(f"folder('{folder}', image_size=16)"))
    trained = next(path for path in sorted(folder.rglob("*.png")) if str(path.relative_to(folder)) not in recorded(run))
    trained.unlink()
    monkeypatch.chdir(tmp_path)
    assert evaluate(run.id[:6])["test"] == run.result["test"]


def test_changed_images_outside_of_the_tested_subset_do_not_matter(tmp_path: Path, folder: Path) -> None:
    run, _ = fit(tmp_path / "runs", on(f"folder('{folder}', image_size=16)", test_subset=4))
    kept = set(subset_tested(run.config, load_data(run.path)).tolist())
    other = next(file for index, file in enumerate(recorded(run)) if index not in kept)
    (folder / other).unlink()
    found = evaluate(run.path)
    assert found["test"] == run.result["test"]
    assert "incomplete-test" not in found["flags"]


@pytest.mark.parametrize("name", [b"caf\xe9.png", b"caf\xe9/1.png"], ids=["file", "class"])
def test_name_that_is_not_utf8_is_rejected(tmp_path: Path, folder: Path, name: bytes) -> None:
    place = Path(os.fsdecode(os.fsencode(folder if b"/" in name else folder / "a") + b"/" + name))
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(next(folder.rglob("*.png")).read_bytes())
    with pytest.raises(FavoritError, match=r"caf\\xe9.*: the name of a class or file is not UTF-8: rename it"):
        load_dataset(f"folder('{folder}', image_size=16)")


def test_card_without_fit_or_paths_without_suffix_are_damaged(tmp_path: Path, folder: Path) -> None:
    run, _ = fit(tmp_path / "runs", on(f"folder('{folder}', image_size=16)"))
    files, config = run.path / "test_files.json", run.path / "config.json"
    saved = json.loads(config.read_text())
    del saved["sha256"]
    for change in ({"fit": None}, {"channels": 1}):
        config.write_text(json.dumps({**saved, "data": {**saved["data"], **change}}))
        with pytest.raises(FavoritError, match=r"config.json is damaged"):
            evaluate(run.path)
    config.write_text(json.dumps(saved))
    files.write_text('{"schema": 1, "files": {"a/stdin": "0"}}')
    with pytest.raises(FavoritError, match="paths that are not image files"):
        evaluate(run.path)
