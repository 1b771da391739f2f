"""Each vectorized augmentation step against a plain reference that works image by image."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from favorit.data.augment import AUGMENTS, Augment, Crop, Cutmix, Cutout, Flip, Mixup, Rotate, build_augment
from favorit.errors import FavoritError

MEAN = torch.tensor([10, 20, 30], dtype=torch.uint8)
LABELS = torch.arange(12) % 3  # labels of the fixture `pixels`


def crop_reference(image: Tensor, row: Tensor, padding: int) -> Tensor:
    _, height, width = image.shape
    padded = torch.nn.functional.pad(image, (padding,) * 4)
    top, left = padding + int(row[0]), padding + int(row[1])
    return padded[:, top : top + height, left : left + width]


def flip_reference(image: Tensor, row: Tensor) -> Tensor:
    return image.flip(-1) if bool(row[0]) else image


def rotate_reference(image: Tensor, row: Tensor) -> Tensor:
    _, height, width = image.shape
    angle = math.atan2(float(row[1]), float(row[0]))
    out = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            v, u = y - (height - 1) / 2, x - (width - 1) / 2
            source_x = math.floor(math.cos(angle) * u + math.sin(angle) * v + width / 2)
            source_y = math.floor(math.cos(angle) * v - math.sin(angle) * u + height / 2)
            if 0 <= source_x < width and 0 <= source_y < height:
                out[:, y, x] = image[:, source_y, source_x]
    return out


def cutout_reference(image: Tensor, row: Tensor, size: int) -> Tensor:
    _, height, width = image.shape
    top, left = int(row[0] * height) - size // 2, int(row[1] * width) - size // 2
    out = image.clone()
    out[:, max(0, top) : max(0, top + size), max(0, left) : max(0, left + size)] = MEAN[:, None, None]
    return out


REFERENCES = {
    "crop(3)": lambda image, row: crop_reference(image, row, 3),
    "crop(20)": lambda image, row: crop_reference(image, row, 20),
    "flip": flip_reference,
    "rotate(5)": rotate_reference,
    "rotate(180)": rotate_reference,
    "cutout(6)": lambda image, row: cutout_reference(image, row, 6),
    "cutout(1)": lambda image, row: cutout_reference(image, row, 1),
    "cutout(40)": lambda image, row: cutout_reference(image, row, 40),
}


@pytest.mark.parametrize(
    "text",
    [
        *REFERENCES,
        "crop(3)|flip",
        "crop(3)|flip|rotate(5)|cutout(6)",
        "cutout(6)|rotate(180)|crop(20)|flip",
        "flip*2|crop(3)*2",
    ],
)
def test_spatial_steps_equal_their_references(text: str, pixels: Tensor) -> None:
    augment = build_augment(text)
    before = pixels.clone()
    rows = augment.draw(5, 2, len(pixels))
    found = augment.spatial(pixels, LABELS, rows, MEAN)
    expected = list(pixels)
    names = [
        part for piece in text.split("|") for part in [piece.partition("*")[0]] * int(piece.partition("*")[2] or 1)
    ]
    for name, table in zip(names, rows, strict=False):
        expected = [REFERENCES[name](image, row) for image, row in zip(expected, table, strict=True)]
    assert torch.equal(found, torch.stack(expected))
    assert torch.equal(pixels, before)
    assert found.dtype == torch.uint8


def test_rotation_agrees_with_grid_sample(pixels: Tensor) -> None:
    """Square images. Ties and rounding at pixel borders may change a few pixels."""
    images = pixels[..., :15]
    rows = Rotate(30.0).draw(len(images), torch.Generator().manual_seed(1))
    cos, sin, zero = rows[:, 0], rows[:, 1], torch.zeros(len(rows))
    theta = torch.stack([torch.stack([cos, sin, zero], 1), torch.stack([-sin, cos, zero], 1)], 1)
    grid = torch.nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
    expected = torch.nn.functional.grid_sample(images.float(), grid, mode="nearest", align_corners=False)
    found = Augment([Rotate(30.0)]).spatial(images.contiguous(), LABELS, [rows], MEAN)
    assert (found == expected).float().mean() > 0.995


def test_rotation_by_90_degrees_is_exact(pixels: Tensor) -> None:
    images = pixels[..., :15].contiguous()
    rows = torch.tensor([[0.0, 1.0]]).repeat(len(images), 1)
    assert torch.equal(Augment([Rotate(90.0)]).spatial(images, LABELS, [rows], MEAN), images.rot90(-1, (2, 3)))


@pytest.mark.parametrize("text", ["crop(4)|flip|rotate(10)|cutout(5)", "mixup(0.3)|cutmix(1)"])
def test_draws_depend_on_sample_and_epoch_only(text: str, pixels: Tensor) -> None:
    augment = build_augment(text)
    tables = augment.draw(1, 0, 1000)
    assert all(torch.equal(a, b) for a, b in zip(tables, augment.draw(1, 0, 1000), strict=True))
    for other in (augment.draw(1, 1, 1000), augment.draw(2, 0, 1000)):
        assert not any(torch.equal(a, b) for a, b in zip(tables, other, strict=True))
    indices = torch.randperm(1000)[: len(pixels)]
    together = augment.spatial(pixels, LABELS, [table[indices] for table in tables], MEAN)
    for number, index in enumerate(indices):
        alone = augment.spatial(
            pixels[number : number + 1], LABELS[:1], [table[index : index + 1] for table in tables], MEAN
        )
        assert torch.equal(alone[0], together[number])


def test_draws_have_the_documented_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    shifts = Crop(2).draw(20000, generator)
    assert torch.bincount(shifts.flatten() + 2).div(40000).sub(0.2).abs().max() < 0.01
    assert Flip().draw(20000, generator).float().mean() == pytest.approx(0.5, abs=0.02)
    angles = torch.rad2deg(torch.atan2(*Rotate(5.0).draw(20000, generator).flip(1).unbind(1)))
    assert angles.abs().max() <= 5.001
    assert angles.std() == pytest.approx(10 / 12**0.5, rel=0.02)
    assert Cutout(3).draw(20000, generator).mean() == pytest.approx(0.5, abs=0.02)
    for alpha in (0.2, 1.0, 4.0):
        lam = Mixup(alpha).draw(20000, generator)
        assert lam.mean() == pytest.approx(0.5, abs=0.02)
        assert lam.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)


def test_mixup_is_the_weighted_mean_with_the_next_image(pixels: Tensor) -> None:
    images = pixels.float()
    lam = Mixup(1.0).draw(len(images) - 1, torch.Generator().manual_seed(0))
    mixed, weight = Augment([Mixup(1.0)]).mix(images, LABELS[:-1], [lam, torch.zeros(len(lam))])
    for number, value in enumerate(lam[:, 0]):
        assert torch.allclose(mixed[number], value * images[number] + (1 - value) * images[number + 1], atol=1e-3)
    assert torch.equal(weight, lam[:, 0])


def test_cutmix_pastes_a_rectangle_of_the_next_image_and_weights_by_area(pixels: Tensor) -> None:
    images = pixels.float()
    rows = Cutmix(1.0).draw(len(images) - 1, torch.Generator().manual_seed(3))
    mixed, weight = Augment([Cutmix(1.0)]).mix(images, LABELS[:-1], [rows, torch.zeros(len(rows))])
    for number in range(len(rows)):
        pasted = (mixed[number] != images[number]).any(0)
        assert torch.equal(mixed[number][:, pasted], images[number + 1][:, pasted])
        assert float(weight[number]) == pytest.approx(1 - float(pasted.float().mean()), abs=1e-6)
        ys, xs = pasted.nonzero(as_tuple=True)
        if len(ys):
            assert int(pasted.sum()) == int((ys.max() - ys.min() + 1) * (xs.max() - xs.min() + 1))


def test_several_mixings_apply_exactly_one_to_each_sample(pixels: Tensor) -> None:
    images, count = pixels.float(), len(pixels) - 1
    both = Augment([Mixup(1.0), Cutmix(1.0)])
    rows = both.draw(0, 0, count)
    mixed, _ = both.mix(images, LABELS[:-1], rows)
    first, _ = Augment([Mixup(1.0)]).mix(images, LABELS[:-1], [rows[0], rows[-1]])
    second, _ = Augment([Cutmix(1.0)]).mix(images, LABELS[:-1], [rows[1], rows[-1]])
    took_first = [bool(torch.equal(mixed[number], first[number])) for number in range(count)]
    assert all(took or torch.equal(mixed[number], second[number]) for number, took in enumerate(took_first))
    assert 0 < sum(took_first) < count


@pytest.mark.parametrize("text", [None, "", "  ", "none"])
def test_empty_text_is_no_augmentation(text: str | None) -> None:
    assert build_augment(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flop", "unknown augmentation 'flop': did you mean 'flip'"),
        ("crop(0)", "crop: padding=0 is not valid"),
        ("rotate(200)", "rotate: degrees=200 is not valid"),
        ("cutout(2.5)", "cutout: size=2.5 is not valid"),
        ("mixup(0)", "mixup: alpha=0 is not valid"),
        ("mixup(0.2)|flip", "mixup and cutmix come last"),
        ("crop(4)||flip", "cannot read the spec"),
        ("flip(classes=())", r"flip: classes=\(\) is not valid"),
        ("flip(classes=(-1,))", r"flip: classes=\(-1,\) is not valid"),
        ("rotate(10, classes=(cat,))", "a literal or one word"),
        ("rotate(10, classes=('cat',))", "rotate: classes=.* is not valid"),
        ("mixup(0.2, classes=1)", "mixup: classes=1 is not valid"),
    ],
)
def test_invalid_augmentation_is_a_one_line_error(text: str, message: str) -> None:
    with pytest.raises(FavoritError, match=message) as error:
        build_augment(text)
    assert "\n" not in str(error.value)


def test_every_augmentation_has_a_summary() -> None:
    assert set(AUGMENTS) == {"crop", "flip", "rotate", "cutout", "mixup", "cutmix"}
    assert all(AUGMENTS[name].summary for name in AUGMENTS)


@pytest.mark.parametrize(
    "text", ["crop(3, {})", "flip({})", "rotate(30, {})", "cutout(6, {})", "flip|rotate(30, {})|cutout(6)"]
)
def test_step_limited_to_classes_changes_only_their_images(text: str, pixels: Tensor) -> None:
    """Images of these classes equal the result with an unlimited step; others equal the result without the step."""
    limited, for_all = build_augment(text.format("classes=(0, 2)")), build_augment(text.format("classes=None"))
    rows = limited.draw(3, 0, len(pixels))
    assert all(torch.equal(a, b) for a, b in zip(rows, for_all.draw(3, 0, len(pixels)), strict=True))
    found = limited.spatial(pixels, LABELS, rows, MEAN)
    chosen = (LABELS == 0) | (LABELS == 2)
    limited_step = next(number for number, part in enumerate(text.split("|")) if "{}" in part)
    others = Augment([stage for number, stage in enumerate(for_all.spatial_stages) if number != limited_step])
    without = others.spatial(pixels, LABELS, [row for number, row in enumerate(rows) if number != limited_step], MEAN)
    assert torch.equal(found[chosen], for_all.spatial(pixels, LABELS, rows, MEAN)[chosen])
    assert torch.equal(found[~chosen], without[~chosen])
    assert not torch.equal(found[chosen], without[chosen])


def test_mixing_limited_to_classes_leaves_other_images_and_labels(pixels: Tensor) -> None:
    images, labels = pixels.float(), LABELS[:-1]
    augment = build_augment("mixup(1.0, classes=(1,))|cutmix(1.0, classes=(1, 2))")
    rows = augment.draw(0, 0, len(labels))
    mixed, weight = augment.mix(images, labels, rows)
    for_all, _ = build_augment("mixup(1.0)|cutmix(1.0)").mix(images, labels, rows)
    takes_cutmix = rows[-1] >= 0.5
    chosen = (labels == 1) | ((labels == 2) & takes_cutmix)
    assert chosen.any()
    assert not chosen.all()
    assert torch.equal(mixed[chosen], for_all[chosen])
    assert torch.equal(mixed[~chosen], images[:-1][~chosen])
    assert weight[~chosen].eq(1).all()


def test_order_of_classes_does_not_change_the_spec() -> None:
    assert str(AUGMENTS.canonical("rotate(10, classes=(5, 3, 5))")) == "rotate(degrees=10.0, classes=(3, 5))"
    assert str(AUGMENTS.canonical("rotate(10, classes=[3, 5])")) == "rotate(degrees=10.0, classes=(3, 5))"
    assert (
        str(AUGMENTS.canonical("rotate(10, classes=None)"))
        == str(AUGMENTS.canonical("rotate(10)"))
        == "rotate(degrees=10.0)"
    )


def test_every_augmentation_has_the_parameter_classes() -> None:
    assert all(list(AUGMENTS[name].parameters)[-1] == "classes" for name in AUGMENTS)
