"""Points: combining the configurations of a study as data."""

from __future__ import annotations

import pytest

from favorit import FavoritError
from favorit.study import Points, product, zip, zipped


def plain(points: Points) -> list[dict[str, object]]:
    return [dict(point) for point in points]


def test_product_varies_the_last_field_fastest():
    assert plain(product({"model.layout": ["softmax", "uniform"], "seed": [0, 1]})) == [
        {"model.layout": "softmax", "seed": 0},
        {"model.layout": "softmax", "seed": 1},
        {"model.layout": "uniform", "seed": 0},
        {"model.layout": "uniform", "seed": 1},
    ]


def test_product_accepts_keywords_ranges_and_no_fields():
    assert plain(product(seed=range(2))) == [{"seed": 0}, {"seed": 1}]
    assert plain(product({"model.dim": (64,)}, seed=[3])) == [{"model.dim": 64, "seed": 3}]
    assert plain(product()) == [{}]
    assert len(product({"seed": []})) == 0


def test_zip_combines_values_by_index():
    points = zip({"model.dim": [64, 128], "train.lr": [1e-3, 3e-4]})
    assert plain(points) == [{"model.dim": 64, "train.lr": 1e-3}, {"model.dim": 128, "train.lr": 3e-4}]
    assert zip is zipped


def test_zip_of_unequal_lists_names_their_lengths():
    with pytest.raises(FavoritError, match=r"model\.dim has 2, train\.lr has 1"):
        zipped({"model.dim": [64, 128], "train.lr": [1e-3]})


@pytest.mark.parametrize("values", ["softmax", 3, None])
def test_value_that_is_not_a_list_is_rejected(values):
    with pytest.raises(FavoritError, match=r"model\.layout=.*: give a list of values"):
        product({"model.layout": values})


def test_sum_concatenates_and_rejects_duplicates():
    assert plain(product(seed=[0]) + product(seed=[1])) == [{"seed": 0}, {"seed": 1}]
    with pytest.raises(FavoritError, match=r"the point seed=0 train\.lr=0\.1 is on both sides of \+.*\|"):
        Points({"train.lr": 0.1, "seed": 0}) + Points({"seed": 0, "train.lr": 0.1})


def test_union_keeps_one_of_two_equal_points():
    points = product(seed=[0, 1]) | product(seed=[1, 2])
    assert plain(points) == [{"seed": 0}, {"seed": 1}, {"seed": 2}]


def test_multiplication_combines_every_pair():
    points = Points({"data.name": "mnist"}, {"data.name": "cifar10", "data.augment": "flip"}) * product(seed=[0, 1])
    assert [(point["data.name"], point["seed"]) for point in points] == [
        ("mnist", 0),
        ("mnist", 1),
        ("cifar10", 0),
        ("cifar10", 1),
    ]
    with pytest.raises(FavoritError, match="seed is on both sides of"):
        product(seed=[0]) * product(seed=[1])


def test_points_can_be_filtered_sliced_and_counted():
    points = product({"model.depth": [2, 4], "seed": [0, 1, 2]})
    assert len(points) == 6
    assert plain(points.where(lambda point: point["model.depth"] == 4 and point["seed"])) == plain(points[4:])
    assert points[0] == {"model.depth": 2, "seed": 0}
    assert isinstance(points[:2], Points)


def test_points_are_immutable():
    written = {"seed": 0}
    points = Points(written)
    written["seed"] = 1
    assert points[0]["seed"] == 0
    with pytest.raises(TypeError):
        points[0]["seed"] = 2  # type: ignore[index]


@pytest.mark.parametrize(
    ("field", "hint"),
    [("model.layot", "model.layout"), ("layout", "model.layout"), ("train.seed", "seed"), ("data.path", "data.fold")],
)
def test_unknown_field_is_an_error_with_the_nearest_match(field, hint):
    with pytest.raises(
        FavoritError, match=f"unknown field of a run '{field}': did you mean .*known: .*{hint}"
    ) as error:
        product({field: [1]})
    assert "\n" not in str(error.value)
