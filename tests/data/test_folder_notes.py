"""Splits and notes of folders: small classes, copies of training images, classes without test images."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from favorit.cli.main import app
from favorit.data import load_dataset
from favorit.errors import FavoritError
from training_helpers import photos


def test_small_class_has_training_and_test_images(tmp_path: Path) -> None:
    data = load_dataset(f"folder:{photos(tmp_path / 'images', {'many': 200, 'few': 2})}")
    assert torch.bincount(data.train.labels).tolist() == [1, 161]
    assert torch.bincount(data.test.labels).tolist() == [1, 39]


def test_class_with_one_image_is_rejected_by_name(tmp_path: Path) -> None:
    photos(tmp_path / "images", {"many": 20, "one": 1})
    with pytest.raises(
        FavoritError, match=r"the class 'one' with one image cannot be in both the training and the test"
    ):
        load_dataset(f"folder:{tmp_path / 'images'}")


def test_shared_test_images_are_counted_and_named(tmp_path: Path) -> None:
    photos(tmp_path / "train", {"a": 6, "b": 6})
    photos(tmp_path / "test", {"a": 3, "b": 3}, seed=1)
    assert load_dataset(f"folder:{tmp_path}").notes == ()
    for number in (1, 4):
        shutil.copy(tmp_path / "train" / "a" / f"00{number}.png", tmp_path / "test" / "a" / f"copy{number}.png")
    (note,) = load_dataset(f"folder:{tmp_path}").notes
    assert note == (
        "2 of 8 test images have the same content as training images, such as test/a/copy1.png and train/a/001.png: "
        "accuracy on them is too high; remove the copies"
    )


def test_copies_across_the_random_split_are_noted(tmp_path: Path) -> None:
    folder = photos(tmp_path / "images", {"a": 10, "b": 10})
    assert load_dataset(f"folder:{folder}").notes == ()
    for file in [*folder.rglob("*.png")]:
        shutil.copy(file, file.with_name(f"copy{file.name}"))
    (note,) = load_dataset(f"folder:{folder}").notes
    assert "of 8 test images have the same content as training images, such as " in note


def test_class_without_test_images_is_noted(tmp_path: Path) -> None:
    photos(tmp_path / "train", {"a": 6, "b": 6})
    photos(tmp_path / "test", {"a": 3}, seed=1)
    assert load_dataset(f"folder:{tmp_path}").notes == ("no test images of b: the accuracy says nothing about them",)


def test_skipping_all_images_of_a_class_is_rejected(tmp_path: Path) -> None:
    photos(tmp_path / "images", {"a": 6, "b": 6})
    for file in (tmp_path / "images" / "b").iterdir():
        file.write_bytes(b"")
    match = "no training image of the class 'b' is left after skipping 6 unreadable files: repair them or remove"
    with pytest.raises(FavoritError, match=match):
        load_dataset(f"folder({str(tmp_path / 'images')!r}, skip_unreadable=True)")


def test_unreadable_files_of_all_parts_are_counted_together(tmp_path: Path) -> None:
    for part in ("train", "test"):
        photos(tmp_path / part, {"a": 6, "b": 6}, seed=len(part))
        (tmp_path / part / "a" / "bad.png").write_bytes(b"")
    match = (
        "2 of 26 images cannot be read: train/a/bad.png, test/a/bad.png: repair or remove them, or skip them with --s"
    )
    with pytest.raises(FavoritError, match=match):
        load_dataset(f"folder:{tmp_path}")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("", "crop to 64 x 64: on average 41% of an image is cut off, at most 53%: a/001.png (14 wide, 30 high)"),
        (", fit=letterbox", "letterbox to 64 x 64: black borders fill 41% on average, at most 53%: a/001.png (14 wide"),
        (", fit=resize", "resize to 64 x 64: images are squeezed, at most by a factor of 2.14: a/001.png (14 wide"),
    ],
)
def test_data_show_prints_what_happens_to_the_shape(tmp_path: Path, options: str, line: str) -> None:
    folder = photos(tmp_path / "images", {"a": 30, "b": 30})
    out = tmp_path / "out.png"
    shown = CliRunner().invoke(app, ["data", "show", f"folder({str(folder)!r}{options})", "--out", str(out)])
    assert line in shown.output
    assert "training images: a 24, b 24" in shown.output
    assert out.is_file()
