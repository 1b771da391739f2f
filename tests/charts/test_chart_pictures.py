"""Images within charts."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from checks_chart import drawn_texts, marks
from favorit.charts.pictures import picture_row, png_url


def decoded(url: str) -> np.ndarray:
    with Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,")))) as image:
        return np.asarray(image)


def noise(high: int, wide: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (high, wide, 3), dtype=np.uint8)


def test_pixels_of_small_images_are_repeated() -> None:
    image = noise(8, 12)
    found = decoded(png_url(image, 40))
    assert found.shape == (7 * 8, 7 * 12, 3), "at least two pixels for each of 40 points"
    assert (found == image.repeat(7, 0).repeat(7, 1)).all()


def test_large_images_are_reduced_with_their_average_color() -> None:
    image = noise(400, 600)
    found = decoded(png_url(image, 60))
    assert found.shape == (80, 120, 3)
    assert found.mean() == pytest.approx(image.mean(), abs=1)
    assert found.std() < 0.5 * image.std(), "pixels are averaged, not picked"


@pytest.mark.parametrize("count", [1, 6, 60])
def test_row_has_all_images_and_names_without_overlap(count: int) -> None:
    chart = picture_row([(f"crop({number})", noise(8, 8)) for number in range(count)], 640 / count, 96, count, "Steps")
    *pictures, names = marks(chart)
    assert len(pictures) == len(names["rows"]) == count
    assert all(picture["width"] < 640 / count for picture in pictures)
    assert all(picture["height"] == pytest.approx(picture["width"]) for picture in pictures)
    assert "Steps" in drawn_texts(chart)


def test_images_of_different_sizes_fit_in_one_row() -> None:
    chart = picture_row(
        [("file", noise(20, 80)), ("original", noise(8, 8)), ("flip", noise(8, 8))], 100, 96, 3, "Steps"
    )
    file, original, flip, _ = marks(chart)
    assert file["width"] == pytest.approx(4 * file["height"])
    assert file["width"] == pytest.approx(original["width"]) == pytest.approx(original["height"])
    assert [mark["rows"][0]["x"] for mark in (file, original, flip)] == [0, 100, 200]
