from __future__ import annotations

import base64
import io
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from checks_chart import drawn_texts, marks
from favorit.cli.data import app
from favorit.data import load_dataset
from favorit.data.show import picture
from favorit.data.show_figure import SAMPLES_SPACE, draw, histogram_table, sample_columns, save_picture
from favorit.errors import FavoritError

RUNNER = CliRunner()
SET = load_dataset("synthetic(size=24, channels=3, classes=12, train=120, test=12)")


def test_picture_content_matches_the_data_set() -> None:
    content = picture(SET, "crop(3)|flip|cutout(6)", patch=6, seed=1)
    assert [name for name, _ in content.samples] == list(SET.classes[:10])
    for label, (_, images) in enumerate(content.samples):
        members = SET.train.images[SET.train.labels == label]
        assert images.shape == (10, 3, 24, 24)
        assert all((members == image).flatten(1).all(1).any() for image in images)
    assert [name for name, _ in content.steps] == ["original", "crop(3)", "flip", "cutout(6)"]
    original, crop, flip, cutout = (image for _, image in content.steps)
    assert torch.equal(flip, crop.flip(-1))
    assert 9 <= int((cutout != flip).any(0).sum()) <= 36
    assert content.histograms.shape == (3, 256)
    assert torch.allclose(content.histograms.sum(1), torch.ones(3), atol=1e-5)
    values = torch.arange(256) / 255
    assert torch.allclose((content.histograms * values).sum(1), torch.tensor(SET.mean), atol=1e-3)
    expected = (original / 255 - torch.tensor(SET.mean)[:, None, None]) / torch.tensor(SET.std)[:, None, None]
    assert torch.allclose(content.normalized, expected, atol=1e-5)
    assert content.patches.shape == (4, 4, 3, 6, 6)
    assert torch.equal(content.patches[1, 2], original[:, 6:12, 12:18])


@pytest.mark.parametrize(
    "text", ["digits", "synthetic(size=7, channels=1)", "synthetic(size=30, channels=2, classes=3, train=20)"]
)
def test_pictures_of_all_image_shapes_are_drawn(text: str, tmp_path: Path) -> None:
    save_picture(load_dataset(text), tmp_path / "out.png")
    with Image.open(tmp_path / "out.png") as image:
        width, height = image.size
    assert 2000 < width < 3000
    assert 1100 < height < 1500


def decoded(url: str) -> torch.Tensor:
    """The uint8 image (3, H, W) of a data URL."""
    content = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(content)) as image:
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


def shown(text: str) -> dict[str, torch.Tensor]:
    """{name: image} of the steps and views in the figure, in the size of the data set."""
    dataset = load_dataset(text)
    images = [
        (" ".join(row["name"]), decoded(row["url"]))
        for mark in marks(draw(picture(dataset)))
        if mark["type"] == "image"
        for row in mark["rows"]
        if "name" in row
    ]
    factors = {name: image.shape[1] // dataset.image_size[0] for name, image in images}
    return {name: image[:, :: factors[name], :: factors[name]] for name, image in images}


@pytest.mark.parametrize(
    ("classes", "count", "columns"),
    [(1, 10, 3), (2, 10, 5), (3, 10, 5), (4, 10, 5), (6, 10, 10), (10, 10, 10), (2, 3, 3)],
)
def test_few_classes_have_several_rows_of_larger_samples(classes: int, count: int, columns: int) -> None:
    assert sample_columns(classes, count, 32, 32) == columns


def test_wide_samples_have_fewer_columns_than_tall_ones() -> None:
    assert sample_columns(2, 10, 32, 96) < sample_columns(2, 10, 96, 32)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_samples_fill_their_place_whatever_the_number_of_classes(classes: int) -> None:
    dataset = load_dataset(f"synthetic(size=24, channels=3, classes={classes}, train=120, test=12)")
    chart = draw(picture(dataset))
    samples = marks(chart)[0]
    assert [row["class"] for row in samples["rows"]] == samples["encoding"]["y"]["sort"] == list(dataset.classes)
    wide, high = SAMPLES_SPACE
    assert samples["width"] <= wide
    assert samples["height"] * classes <= high
    assert samples["width"] > 0.95 * wide or samples["height"] * classes > 0.95 * high
    assert set(dataset.classes) <= set(drawn_texts(chart))


def test_a_class_of_many_has_its_images_in_one_row() -> None:
    samples = marks(draw(picture(SET)))[0]
    expected = picture(SET).samples[3][1]
    sheet = decoded(samples["rows"][3]["url"])
    side = sheet.shape[2] / 10
    for number, image in enumerate(expected):
        center = sheet[:, int(side / 2), int((number + 0.5) * side)]
        assert (center == image.flatten(1).T).all(1).any(), "the middle of a tile is a pixel of its image"


def test_histogram_has_the_share_of_each_value() -> None:
    content = picture(SET)
    table = histogram_table(content)
    assert list(table["channel"].unique()) == ["red", "green", "blue"]
    assert torch.equal(torch.tensor(table["share"].to_numpy(), dtype=torch.float32), content.histograms.flatten())
    assert list(table["value"][:256]) == list(range(256))


def test_long_names_of_steps_are_wrapped() -> None:
    texts = drawn_texts(draw(picture(SET, "crop(1)|rotate(40, classes=(1, 2, 3, 4))|flip|flip|flip|flip")))
    assert "rotate(40," in texts
    assert all(len(text) < 16 for text in texts if "classes=" in text)


def test_class_names_are_drawn_as_written(tmp_path: Path) -> None:
    names = ("a$_$b", "c$", "<b>&amp;")
    for name in names:
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "set" / name / f"{number}.png")
    chart = draw(picture(load_dataset(f"folder:{tmp_path / 'set'}")))
    assert set(names) <= set(drawn_texts(chart))


def test_figure_of_a_color_image_has_its_channels_and_the_normalized_image() -> None:
    text = "synthetic(size=24, channels=3, classes=3, train=30, test=3)"
    found, content = shown(text), picture(load_dataset(text))
    for number, name in enumerate(("red", "green", "blue")):
        assert torch.equal(found[name][number], found["original"][number])
        assert int(found[name].sum()) == int(found["original"][number].sum()), "the other channels are black"
    assert torch.allclose(found["normalized"] / 63.75 - 2, content.normalized.clamp(-2, 2), atol=0.01)


def test_figure_of_a_gray_image_has_no_channel_views() -> None:
    found = shown("synthetic(size=24, channels=1, classes=3, train=30, test=3)")
    assert "normalized" in found
    assert not {"red", "channel 1"} & set(found)


def test_steps_limited_to_classes_are_shown_on_an_image_of_those_classes() -> None:
    content = picture(SET, "rotate(40, classes=(7, 8))|cutout(12, classes=(8, 9))", seed=1)
    images = [image for _, image in content.steps]
    number = int((SET.train.images == images[0]).flatten(1).all(1).nonzero()[0])
    assert int(SET.train.labels[number]) == 8
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(images))
    with pytest.raises(FavoritError, match=r"classes=12 is not valid: the data have the classes 0\.\.11"):
        picture(SET, "flip(classes=(12,))")


def test_invalid_arguments_are_one_line_errors(tmp_path: Path) -> None:
    with pytest.raises(FavoritError, match=r"patch=25 is not valid: 1\.\.24"):
        picture(SET, patch=25)
    with pytest.raises(FavoritError, match="unknown augmentation 'flap'"):
        picture(SET, "flap")
    with pytest.raises(FavoritError, match=r"cannot write .*nowhere.out\.png: No such file"):
        save_picture(SET, tmp_path / "nowhere" / "out.png")
    with pytest.raises(FavoritError, match=r"unknown format \.unknown: use \.png, \.svg or \.pdf"):
        save_picture(SET, tmp_path / "out.unknown")


def test_output_file_is_checked_before_the_data_are_read(tmp_path: Path) -> None:
    found = RUNNER.invoke(app, ["show", "nothing", "--out", str(tmp_path / "out.jpg")])
    assert "--out" in str(found.exception)
    assert "unknown format .jpg: use .png, .svg or .pdf" in str(found.exception)


def test_data_commands_list_show_and_fetch(tmp_path: Path) -> None:
    listed = RUNNER.invoke(app, ["list"])
    assert listed.exit_code == 0
    assert all(word in listed.output for word in ("digits", "cifar100", "folder:PATH", "CC BY-SA 3.0", "absent"))
    as_json = json.loads(RUNNER.invoke(app, ["list", "--json"]).output)
    assert as_json["cifar100"]["classes"] == 100
    assert (as_json["digits"]["present"], as_json["cifar10"]["present"]) == (True, False)
    out = tmp_path / "digits.png"
    shown = RUNNER.invoke(app, ["show", "digits", "--out", str(out), "--augment", "crop(1)|rotate(10)", "--patch", "4"])
    assert shown.exit_code == 0
    assert out.is_file()
    fetched = RUNNER.invoke(app, ["fetch", "digits"])
    assert fetched.output == "digits: 1,437 training and 360 test images, no download needed\n"
    assert isinstance(RUNNER.invoke(app, ["fetch", "digts"]).exception, FavoritError)


@pytest.mark.parametrize("command", ["list", "fetch", "show"])
def test_help_has_an_example(command: str) -> None:
    shown = RUNNER.invoke(app, [command, "--help"])
    assert f"favorit data {command}" in shown.output


def test_list_reports_present_files(real_data: Path) -> None:
    listed = json.loads(RUNNER.invoke(app, ["list", "--json", "--data-dir", str(real_data)]).output)
    assert {name: row["present"] for name, row in listed.items() if "mnist" in name or "cifar" in name} == {
        "mnist": True,
        "fashion_mnist": False,
        "cifar10": True,
        "cifar100": True,
    }


def test_data_command_does_not_import_torch() -> None:
    code = "import sys, favorit.cli.data; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_picture_shows_the_file_of_an_image_with_what_is_cut_off(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(10):
            # A gray square between two black margins, which the crop cuts off.
            whole = Image.new("RGB", (80, 40))
            whole.paste((100, 100, 100), (20, 0, 60, 40))
            whole.putpixel((40, number), (0, 0, 0))
            whole.save(tmp_path / name / f"{number}.png")
    content = picture(load_dataset(f"folder:{tmp_path}"))
    assert content.file is not None
    label, shown = content.file
    assert label == "file 80x40"
    assert shown.shape == (3, 40, 80)
    assert shown[:, :, :20].eq(160).all()
    assert shown[:, :, 60:].eq(160).all()
    assert shown[:, 20:, 20:60].eq(100).all()
    labels = [" ".join(row["name"]) for mark in marks(draw(content)) for row in mark["rows"] if "name" in row]
    assert labels.index("file 80x40") == labels.index("original") - 1
    assert picture(load_dataset(f"folder({str(tmp_path)!r}, fit=letterbox)")).file is not None
    assert picture(SET).file is None


def test_step_larger_than_the_image_is_not_shown() -> None:
    with pytest.raises(FavoritError, match=r"crop\(padding=24\) is not valid for images of 24 x 24, .* at most 23"):
        picture(SET, "crop(24)")
    assert len(picture(load_dataset("synthetic(size=1, classes=2, train=10, test=4)")).steps) > 1
