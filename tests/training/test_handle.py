"""The readable forms of what Python functions return."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import favorit
from favorit import study
from training_helpers import MODEL, TRAIN, fit, tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> favorit.Run:
    return fit(tmp_path_factory.mktemp("handle"), tiny())[0]


def test_run_shows_id_status_accuracy_data_and_folder(run: favorit.Run) -> None:
    accuracy = f"{run.result['test']['accuracy']:.2%}"
    assert repr(run) == f"<Run {run.id}: complete, test {accuracy} on {run.config.data.name}, {run.path}>"


def test_run_that_stopped_is_missing_or_is_damaged_has_a_form_too(tmp_path: Path) -> None:
    assert repr(favorit.Run(tmp_path / "none")) == f"<Run none: not found, {tmp_path / 'none'}>"
    stopped, _ = fit(tmp_path, tiny())
    (stopped.path / "result.json").unlink()
    assert repr(stopped).startswith(f"<Run {stopped.id}: stopped on synthetic(")
    for content in ("{", "[]", '{"config": 3, "data": {}}', '{"config": {"data": {}}, "data": {}}'):
        (stopped.path / "config.json").write_text(content)
        assert repr(stopped) == f"<Run {stopped.id}: damaged, {stopped.path}>"


def test_run_of_text_equals_run_of_path(run: favorit.Run) -> None:
    assert favorit.Run(str(run.path)) == run
    assert len({favorit.Run(str(run.path)), run}) == 1


def test_prediction_shows_classes_with_probabilities(run: favorit.Run, tmp_path: Path) -> None:
    file = tmp_path / "gray.png"
    Image.new("RGB", (20, 11), (90, 90, 90)).save(file)
    (one,) = favorit.predict(run, file, top=2)
    assert one.file == file
    (first, p), (second, q) = one.classes
    assert repr(one) == f"<{file}: {first} {p:.1%}, {second} {q:.1%}>"
    assert one.label == first
    (same,) = favorit.predict(run, Image.open(file), top=1)
    assert repr(same) == f"<{first} {p:.1%}>"


def test_predict_takes_single_images_lists_and_batches(run: favorit.Run, tmp_path: Path) -> None:
    model = favorit.load(run)
    batch = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    expected = model.predict(batch)
    assert [len(each.classes) for each in expected] == [3, 3, 3]
    for same in (list(batch), batch.transpose(0, 3, 1, 2), batch / 255):
        assert model.predict(same) == expected
    assert model.predict(batch[0])[0].label == model.predict(Image.fromarray(batch[0]))[0].label == expected[0].label
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for file, image in zip(files, batch, strict=True):
        Image.fromarray(image).save(file)
    found = model.predict(tmp_path)
    assert [(each.file, each.label) for each in found] == [
        (file, each.label) for file, each in zip(files, expected, strict=True)
    ]


def test_unreadable_file_among_others_has_an_error(run: favorit.Run, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"broken")
    good, bad = favorit.predict(run, [np.zeros((8, 8, 3)), tmp_path / "broken.png"])
    assert good.error is None
    assert repr(bad).startswith(f"<{tmp_path / 'broken.png'}: cannot be read as an image")
    with pytest.raises(favorit.FavoritError, match=r"broken\.png: cannot be read as an image"):
        _ = bad.label
    with pytest.raises(favorit.FavoritError, match=r"broken\.png: cannot be read as an image"):
        favorit.predict(run, tmp_path / "broken.png")


def test_evaluation_comparison_diagnosis_and_report_are_readable(run: favorit.Run, tmp_path: Path) -> None:
    accuracy = f"{run.result['test']['accuracy']:.2%}"
    assert repr(favorit.evaluate(run)).startswith(f"<EvaluatedRun: accuracy {accuracy}, loss ")
    assert repr(favorit.load(run)) == "<TrainedModel softmax: images 8x8x3, 3 classes>"
    other, _ = fit(tmp_path, tiny(seed=1))
    lines = repr(favorit.compare(run, other.path)).splitlines()
    assert lines[0] == "<Comparison>"
    assert lines[1].endswith(f": {accuracy}, 1 run")
    found = favorit.doctor(run, images=4, counts=[8])
    assert repr(found).splitlines()[0] == f"<Diagnosis of {run.id}>"
    advice = [f"layer {each.layer}: {each.verdict} ({each.reason})" for each in found.advice]
    assert repr(found).splitlines()[1:3] == advice
    base = {"data.name": "synthetic(size=8, classes=3, train=96, test=48)"}
    base |= {f"model.{key}": value for key, value in MODEL.items()}
    base |= {f"train.{key}": value for key, value in TRAIN.items()}
    report = study.run(study.Study("tiny", "?", base, study.product({"seed": [0]})), out=tmp_path)
    result = report.results["tiny"]["test"]["accuracy"]
    assert repr(report) == f"<Report of tiny: 1 of 1 points done>\ntiny   test {result:.2%}"
