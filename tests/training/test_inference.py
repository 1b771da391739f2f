"""Inference with a finished run reproduces its saved predictions, from tensors and from image files of any size."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import favorit
from favorit import FavoritError
from favorit.data import load_dataset
from favorit.training.inference import evaluate, load_data, predict_files
from training_helpers import LIVELY, fit, pictures, tiny

CONFIGS = {
    "plain": tiny(),
    "lively": tiny(**LIVELY),
    "resized": tiny(data=dict(preprocess="resize(12)|normalise(0.5, 0.25)")),
}


@pytest.fixture(scope="module", params=CONFIGS)
def run(request, tmp_path_factory: pytest.TempPathFactory) -> favorit.Run:
    return fit(tmp_path_factory.mktemp("loaded"), CONFIGS[request.param])[0]


@pytest.fixture(scope="module")
def shades(tmp_path_factory: pytest.TempPathFactory) -> favorit.Run:
    """A run that classifies 8x8 images as black or white."""
    place = tmp_path_factory.mktemp("shades")
    path = pictures(place / "images", {"black": 30, "white": 30})
    config = tiny(data=dict(name=f"folder('{path}', 8)", validation=0.2), train=dict(epochs=4))
    run, _ = fit(place / "runs", config)
    assert run.result["test"]["accuracy"] == 1.0
    return run


def test_predict_reproduces_the_saved_predictions(run):
    data = load_dataset(run.config.data.name)
    with np.load(run.path / "predictions.npz") as saved:
        logits, labels = torch.from_numpy(saved["logits"]), torch.from_numpy(saved["labels"])
    assert torch.equal(labels, data.test.labels)
    found = favorit.load(run).probabilities(data.test.images)
    torch.testing.assert_close(found, logits.softmax(-1), rtol=1e-5, atol=1e-7)
    assert (found.argmax(-1) == labels).double().mean().item() == run.result["test"]["accuracy"]


def test_load_accepts_a_run_a_path_or_text(run):
    images = load_dataset(run.config.data.name).test.images[:4]
    one = favorit.load(run).probabilities(images)
    assert torch.equal(favorit.load(run.path).probabilities(images), one)
    assert torch.equal(favorit.load(str(run.path)).probabilities(images), one)


def test_predict_works_without_the_data(shades, tmp_path: Path):
    """The run stores classes, mean and std."""
    elsewhere = tmp_path / "run"
    import shutil

    shutil.copytree(shades.path, elsewhere)
    loaded = favorit.load(elsewhere)
    assert loaded.classes == ("black", "white")
    assert loaded.probabilities(torch.zeros(1, 3, 8, 8, dtype=torch.uint8)).argmax().item() == 0


def test_evaluate_reproduces_the_result(run):
    found = evaluate(run.path)
    assert found["classes"] == ("class 0", "class 1", "class 2")
    for key in ("test", "parameters", "flops", "flags"):
        assert found[key] == run.result[key]


@pytest.mark.parametrize(
    "data", [dict(test_subset=9), dict(augment="crop(2)|flip", augment_test=True)], ids=["subset", "augmented"]
)
def test_evaluate_uses_the_test_images_of_the_run(tmp_path: Path, data):
    run, _ = fit(tmp_path, tiny(data=data))
    found = evaluate(run.path)
    assert found["test"] == run.result["test"]
    assert found["flags"] == run.result["flags"] != []


def test_bf16_run_is_evaluated_in_bf16(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(train=dict(precision="bf16")))
    assert evaluate(run.path)["test"] == run.result["test"]


def test_changed_data_is_rejected(tmp_path: Path):
    path = pictures(tmp_path / "images", {"a": 20, "b": 20})
    run, _ = fit(tmp_path / "runs", tiny(data=dict(name=f"folder('{path}', 8)", validation=0.2), train=dict(epochs=1)))
    load_data(run.path)
    (path / "a" / "000.png").unlink()
    with pytest.raises(FavoritError, match=r"is not the data set that .* was trained on"):
        load_data(run.path)


def test_features_are_the_tokens_that_the_head_reads(shades):
    loaded, images = favorit.load(shades), load_dataset(shades.config.data.name).test.images
    tokens = loaded.features(images)
    assert tokens.shape == (len(images), loaded.model.tokens, loaded.model.config.dim)
    with torch.inference_mode():
        torch.testing.assert_close(loaded.model.head(tokens).softmax(-1), loaded.probabilities(images))


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 1, 8, 8, dtype=torch.uint8),
        torch.zeros(2, 3, 9, 8, dtype=torch.uint8),
        torch.zeros(3, 8, 8, dtype=torch.uint8),
    ],
    ids=["gray", "size", "no batch"],
)
def test_images_of_wrong_type_or_shape_are_rejected(shades, images):
    model, shape = favorit.load(shades), re.escape(str(tuple(images.shape)))
    for given in (images, images.numpy()):
        with pytest.raises(FavoritError, match=rf"{shape}, but the run was trained on \(3, 8, 8\)"):
            model.probabilities(given)
    with pytest.raises(FavoritError, match=r"image 0 of images must be an array or a tensor, not list"):
        model.probabilities(images.tolist())


@pytest.mark.parametrize(
    ("size", "mode", "suffix"), [((8, 8), "RGB", "png"), ((31, 17), "L", "png"), ((200, 90), "RGB", "jpg")]
)
def test_image_files_of_any_size_are_classified(shades, tmp_path: Path, size, mode, suffix):
    files = []
    for name, level in (("dark", 30), ("light", 220)):
        files.append(tmp_path / f"{name}.{suffix}")
        Image.new(mode, size, level if mode == "L" else (level,) * 3).save(files[-1])
    found = predict_files(shades.path, files)
    assert [prediction.file for prediction in found] == files
    assert [prediction.classes[0][0] for prediction in found] == ["black", "white"]
    assert all(0.5 < prediction.classes[0][1] <= 1 for prediction in found)


def test_prediction_from_a_file_equals_prediction_from_its_tensor(shades):
    data = load_dataset(shades.config.data.name)
    folder = Path(shades.config.data.name.split("'")[1])
    file = folder / "white" / "003.png"
    found = dict(predict_files(shades.path, [file], top=2)[0].classes)
    pixels = torch.from_numpy(np.asarray(Image.open(file)).copy()).permute(2, 0, 1)[None].contiguous()
    expected = favorit.load(shades).probabilities(pixels)[0]
    assert found == {"black": pytest.approx(expected[0].item()), "white": pytest.approx(expected[1].item())}
    assert any(torch.equal(pixels[0], image) for part in (data.train, data.test) for image in part.images)


def test_folder_is_predicted_with_top_capped_at_the_number_of_classes(shades, tmp_path: Path):
    for number in range(3):
        Image.new("RGB", (5, 5), (10 * number,) * 3).save(tmp_path / f"{number}.png")
    found = predict_files(shades.path, [tmp_path], top=9)
    assert [prediction.file.name for prediction in found] == ["0.png", "1.png", "2.png"]
    for _, classes, _ in found:
        assert {name for name, _ in classes} == {"black", "white"}
        assert sum(probability for _, probability in classes) == pytest.approx(1)
        assert classes[0][1] >= classes[1][1]


def test_numpy_arrays_equal_tensors(shades):
    images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(favorit.load(shades).probabilities(images.numpy()), favorit.load(shades).probabilities(images))


def test_images_beyond_one_batch_are_predicted(shades):
    images = torch.randint(256, (600, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    loaded = favorit.load(shades)
    found = loaded.probabilities(images)
    assert found.shape == (600, 2)
    torch.testing.assert_close(found[512:], loaded.probabilities(images[512:]))
    torch.testing.assert_close(found.sum(1), torch.ones(600))


@pytest.mark.parametrize(
    ("name", "same"), [("folder:images", "folder:../images"), ("folder('images', 8)", "folder('../images', 8)")]
)
def test_run_on_a_relative_folder_is_evaluated_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name, same
):
    pictures(tmp_path / "first" / "images", {"a": 20, "b": 20})
    monkeypatch.chdir(tmp_path / "first")
    run, _ = fit(tmp_path / "runs", tiny(data=dict(name=name), train=dict(epochs=1)))
    assert run.config.data.name == name
    (tmp_path / "first" / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "first" / "elsewhere")
    assert evaluate(run.path)["test"] == run.result["test"]
    again, events = fit(tmp_path / "runs", tiny(data=dict(name=same), train=dict(epochs=1)))
    assert (again, events) == (run, [])
    (tmp_path / "first").rename(tmp_path / "second")  # moved together with the working directory
    monkeypatch.chdir(tmp_path / "second")
    assert evaluate(run.path)["test"] == run.result["test"]
