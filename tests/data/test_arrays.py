"""Arrays, tensors and torch Datasets as data sets: the same pixels in any form give the same data set and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

import favorit
from favorit import FavoritError
from favorit.data import build_dataset
from training_helpers import MODEL, TRAIN

GENERATOR = np.random.default_rng(0)
RGB = GENERATOR.integers(0, 256, (60, 8, 12, 3), dtype=np.uint8)
GRAY = RGB[..., 0]
LABELS = np.arange(60) % 3
CONFIG: dict[str, Any] = dict(model=MODEL, train=TRAIN)


class Pictures(Dataset):
    """(image, label) with images in one form."""

    classes = ("a", "b", "c")

    def __init__(self, form: Any) -> None:
        self.form = form

    def __len__(self) -> int:
        return len(RGB)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.form(RGB[index]), int(LABELS[index])


def same(data: favorit.DataSet, pixels: np.ndarray) -> bool:
    """True if the two parts hold exactly these pixels (N, C, H, W), in any order, with their labels."""
    found = torch.cat([data.train.images, data.test.images]), torch.cat([data.train.labels, data.test.labels])
    order = {image.tobytes(): label for image, label in zip(pixels, LABELS, strict=True)}
    return len(found[0]) == 60 and all(order[i.numpy().tobytes()] == label for i, label in zip(*found, strict=True))


@pytest.mark.parametrize(
    "images",
    [
        RGB,
        RGB.transpose(0, 3, 1, 2),
        RGB[:, ::-1][:, ::-1],
        torch.from_numpy(RGB),
        torch.from_numpy(RGB).permute(0, 3, 1, 2),
        RGB / 255,
        (RGB / 255).astype(np.float32),
        torch.from_numpy(RGB).half() / 255,
        list(RGB),
        [Image.fromarray(image) for image in RGB],
    ],
    ids=["NHWC", "NCHW", "strided", "tensor", "tensor NCHW", "float64", "float32", "half", "list", "PIL"],
)
def test_images_of_any_form_give_the_same_pixels(images: Any) -> None:
    data = build_dataset(images, LABELS)
    assert same(data, RGB.transpose(0, 3, 1, 2))
    assert (data.image_size, data.channels, data.classes) == ((8, 12), 3, ("0", "1", "2"))
    assert data.digest == build_dataset((RGB, torch.from_numpy(LABELS))).digest


@pytest.mark.parametrize(
    "images", [GRAY, GRAY[..., None], GRAY[:, None], list(GRAY)], ids=["NHW", "NHW1", "N1HW", "list"]
)
def test_gray_images_have_one_channel(images: Any) -> None:
    data = build_dataset(images, LABELS.tolist())
    assert same(data, GRAY[:, None])
    assert (data.image_size, data.channels) == ((8, 12), 1)


@pytest.mark.parametrize(
    "form",
    [
        lambda image: image,
        Image.fromarray,
        lambda image: torch.from_numpy(image).permute(2, 0, 1),
        lambda image: (image / 255).astype(np.float32),
    ],
    ids=["array", "PIL", "tensor", "float"],
)
def test_torch_dataset_equals_its_arrays(form: Any) -> None:
    data = build_dataset(Pictures(form))
    assert same(data, RGB.transpose(0, 3, 1, 2))
    assert data.classes == ("a", "b", "c")
    assert data.digest == build_dataset(RGB, LABELS, classes=["a", "b", "c"]).digest


def test_tensor_dataset_is_accepted() -> None:
    data = build_dataset(TensorDataset(torch.from_numpy(GRAY), torch.from_numpy(LABELS)))
    assert same(data, GRAY[:, None])


def test_held_out_test_is_a_stratified_fifth_and_given_parts_are_kept() -> None:
    data = build_dataset(GRAY, LABELS)
    assert torch.bincount(data.test.labels).tolist() == [4, 4, 4]
    given = build_dataset(
        GRAY[:40], LABELS[:40], test=(GRAY[40:50], LABELS[40:50]), validation=(GRAY[50:], LABELS[50:])
    )
    assert torch.equal(given.train.images[:, 0], torch.from_numpy(GRAY[:40]))
    assert torch.equal(given.test.labels, torch.from_numpy(LABELS[40:50]))
    assert given.validation is not None
    assert torch.equal(given.validation.images[:, 0], torch.from_numpy(GRAY[50:]))


def test_random_transform_is_rejected() -> None:
    def flip(image: np.ndarray) -> np.ndarray:
        return image[:, ::-1] if GENERATOR.random() < 0.5 else image

    with pytest.raises(FavoritError, match=r"changes when it is read again.*data\.augment"):
        build_dataset(Pictures(flip))


def train(out: Path, data: Any, **options: Any) -> favorit.Run:
    return favorit.train(CONFIG, data=data, out=out, accelerator="cpu", progress=False, **options)


def test_run_is_identified_by_the_content_of_its_arrays(tmp_path: Path) -> None:
    run = train(tmp_path, (RGB, LABELS))
    assert train(tmp_path, build_dataset(torch.from_numpy(RGB).float() / 255, LABELS)) == run
    assert run.config.data.name == "arrays"
    assert (run.config.model.image_size, run.config.model.channels, run.config.model.classes) == ((8, 12), 3, 3)
    assert train(tmp_path, (255 - RGB, LABELS)).id != run.id
    assert train(tmp_path, (RGB, (LABELS + 1) % 3)).id != run.id
    assert favorit.train(run.config, data=(RGB, LABELS), out=tmp_path, progress=False) == run


def test_interrupted_run_on_arrays_resumes(tmp_path: Path) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    def stop(event: Any, config: Any) -> None:
        if type(event).__name__ == "Epoch":
            raise Stop

    whole = train(tmp_path / "whole", (RGB, LABELS))
    with pytest.raises(Stop):
        train(tmp_path / "cut", (RGB, LABELS), listen=stop)
    steps: list[Any] = []
    run = train(tmp_path / "cut", (RGB, LABELS), listen=lambda event, _: steps.append(event))
    assert steps[0].step > 0
    assert run.result["test"] == whole.result["test"]


def test_run_on_arrays_is_loaded_without_data_and_evaluated_with_it(tmp_path: Path) -> None:
    run = train(tmp_path, (RGB, LABELS))
    assert favorit.evaluate(run, data=(RGB, LABELS))["test"] == run.result["test"]
    assert favorit.doctor(run, data=(RGB, LABELS), images=4, counts=[8]).findings
    assert len(favorit.load(run).predict(RGB)) == 60
    for repeat in (favorit.evaluate, favorit.doctor):
        with pytest.raises(FavoritError, match=r"trained on arrays of a Python script.*data=\(images, labels\)"):
            repeat(run)
        with pytest.raises(FavoritError, match="its content has changed"):
            repeat(run, data=(RGB[:30], LABELS[:30]))
