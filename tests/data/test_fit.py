"""Images of any shape brought to one size: squeezed, cropped at the center, or letterboxed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from favorit.config import DataConfig
from favorit.data import build_preprocess, load_dataset, read_image
from favorit.data.datasets import read_spec
from favorit.data.fit import FITS, fit_loss, fit_picture, kept_box, scaled_size
from favorit.errors import FavoritError
from training_helpers import photos

SIDES = st.integers(1, 90)
SIZES = st.tuples(SIDES, SIDES)


@given(image=SIZES, target=SIZES)
def test_crop_covers_and_letterbox_fits_with_the_aspect_ratio_kept(
    image: tuple[int, int], target: tuple[int, int]
) -> None:
    crop, letterbox = scaled_size("crop", image, target), scaled_size("letterbox", image, target)
    assert all(scaled >= side for scaled, side in zip(crop, target, strict=True))
    assert all(scaled <= side for scaled, side in zip(letterbox, target, strict=True))
    ratios = [end / side for end, side in zip(target, image, strict=True)]
    for scaled, scale in ((crop, max(ratios)), (letterbox, min(ratios))):
        assert any(a == b for a, b in zip(scaled, target, strict=True))
        assert all(abs(a - side * scale) < 1 for a, side in zip(scaled, image, strict=True))
    assert scaled_size("resize", image, target) == target


@given(image=SIZES, target=SIZES, fit=st.sampled_from([*FITS]))
def test_file_and_tensor_get_the_target_size(image: tuple[int, int], target: tuple[int, int], fit: str) -> None:
    picture = fit_picture(Image.new("RGB", (image[1], image[0]), (9, 9, 9)), fit, target)
    assert (picture.height, picture.width) == target
    left, top, right, bottom = kept_box(fit, image, target)
    assert 0 <= left < right <= image[1]
    assert 0 <= top < bottom <= image[0]
    text = f"{fit}({target[0]}, {target[1]})"
    pixels = torch.full((2, 3, *image), 9, dtype=torch.uint8)
    assert build_preprocess(text, (0.5,) * 3, (0.5,) * 3)(pixels).shape == (2, 3, *target)
    loss = fit_loss(fit, image, target)
    assert 0 <= loss.cut < 1
    assert 0 <= loss.border < 1
    assert loss.stretch >= 1


def test_center_crop_and_letterbox_have_the_expected_pixels(tmp_path: Path) -> None:
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:] = np.arange(10, 90, 10)[None, :, None]
    Image.fromarray(wide).save(tmp_path / "wide.png")
    row = torch.arange(10, 90, 10, dtype=torch.uint8)
    cropped = read_image(tmp_path / "wide.png", (4, 4), fit="crop")
    assert torch.equal(cropped, row[2:6].expand(3, 4, 4))
    boxed = read_image(tmp_path / "wide.png", (8, 8), fit="letterbox")
    assert torch.equal(boxed[:, 2:6], row.expand(3, 4, 8))
    assert int(boxed[:, :2].sum()) == int(boxed[:, 6:].sum()) == 0


def test_tensor_steps_crop_the_center_and_fill_with_black() -> None:
    row = torch.arange(10, 90, 10, dtype=torch.uint8)
    wide = row.expand(1, 1, 4, 8).contiguous()
    cropped = build_preprocess("crop(4)", (0.2,), (0.5,))(wide)
    torch.testing.assert_close(cropped, ((row[2:6] / 255 - 0.2) / 0.5).expand(1, 1, 4, 4))
    boxed = build_preprocess("letterbox(8)", (0.2,), (0.5,))(wide)
    torch.testing.assert_close(boxed[:, :, 2:6], ((row / 255 - 0.2) / 0.5).expand(1, 1, 4, 8))
    assert boxed[:, :, :2].eq(-0.4).all()
    assert boxed[:, :, 6:].eq(-0.4).all()


def test_folder_keeps_the_aspect_ratio_and_legacy_squeezes(tmp_path: Path) -> None:
    folder = photos(tmp_path / "images", {"a": 9, "b": 9})
    for options, fit in (("", "crop"), (", fit=letterbox", "letterbox"), (", fit=resize", "resize")):
        data = load_dataset(f"folder({str(folder)!r}{options})")
        assert (data.image_size, data.fit) == ((64, 64), fit)
        assert data.files is not None
        for file, size, image in zip(data.files.train, data.files.sizes, data.train.images, strict=True):
            assert torch.equal(read_image(folder / file, (64, 64), fit=fit), image)
            with Image.open(folder / file) as opened:
                assert size == (opened.height, opened.width)
    old = load_dataset(f"folder({str(folder)!r}, legacy=True)")
    assert old.files is not None
    for file, image in zip(old.files.train, old.train.images, strict=True):
        with Image.open(folder / file) as opened:
            squeezed = opened.convert("RGB").resize((64, 64), Image.Resampling.BILINEAR, reducing_gap=3)
        assert torch.equal(torch.from_numpy(np.asarray(squeezed).copy()).permute(2, 0, 1), image)


def test_preprocessing_sets_the_size_at_which_files_are_read(tmp_path: Path) -> None:
    folder = photos(tmp_path / "images", {"a": 9, "b": 9})
    data = load_dataset(read_spec(DataConfig(name=f"folder:{folder}", preprocess="letterbox(24, 32)|normalise(0, 1)")))
    assert (data.image_size, data.fit) == ((24, 32), "letterbox")
    assert data.digest == load_dataset(f"folder({str(folder)!r}, image_size=(24, 32), fit=letterbox)").digest


def test_equal_squares_keep_their_size_whatever_the_preprocessing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(6):
            Image.new("RGB", (20, 20), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    plain = load_dataset(f"folder:{tmp_path}")
    for step in ("resize(16)", "crop(16)", "letterbox(16)"):
        data = load_dataset(read_spec(DataConfig(name=f"folder:{tmp_path}", preprocess=step)))
        assert data.image_size == (20, 20)
        assert data.digest == plain.digest, "the ids of existing runs do not change"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resize(0)", "resize: height=0 is not valid"),
        ("crop(-3)", "crop: height=-3 is not valid"),
        ("letterbox", "letterbox: height is missing"),
        ("resize(72)|crop(64)", "has 2 sizes: keep one; crop and letterbox scale the image themselves"),
        ("leterbox(64)", "unknown preprocessing step 'leterbox': did you mean 'letterbox'"),
    ],
)
def test_invalid_preprocessing_is_a_one_line_error(text: str, message: str) -> None:
    with pytest.raises(FavoritError) as error:
        build_preprocess(text, (0.5,), (0.5,))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("fit=leterbox", "unknown fit 'leterbox': did you mean 'letterbox'"),
        ("image_size=0", "folder: image_size=0 is not valid"),
        ("image_size=1000000", "12 images of 1000000 x 1000000 need .* GiB and .* are free: use a smaller image size"),
        ("skip_unreadable=1", "folder: skip_unreadable=1 is not valid"),
    ],
)
def test_invalid_folder_options_are_one_line_errors(tmp_path: Path, options: str, message: str) -> None:
    photos(tmp_path / "images", {"a": 6, "b": 6})
    with pytest.raises(FavoritError, match=message):
        load_dataset(f"folder({str(tmp_path / 'images')!r}, {options})")


def test_path_without_quotes_is_rejected_with_the_form_to_write() -> None:
    with pytest.raises(FavoritError, match=r"write the path in quotes: folder\('PATH', image_size=96\)"):
        load_dataset("folder(../photos, image_size=96)")
