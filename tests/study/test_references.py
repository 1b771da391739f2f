"""Published rows map to points and to runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from favorit import FavoritError, published
from favorit.published import ABOUT
from favorit.study import Options, Published, Study, load_study, product
from favorit.study.load import built_in
from favorit.study.lookup import published_accuracy
from favorit.study.pairs import pairs
from favorit.study.references import agrees, mapped_rows, unmatched

MAPPED = {each.table: (load_study(name), each) for name in built_in() for each in load_study(name).published}
ROWS = [(table, number) for table in ABOUT for number in range(1, len(published.read(table).rows) + 1)]
REASONS = {"synthetic_imagenet": "bench speed", "linear_attention": "starts from a checkpoint"}


def test_every_published_table_belongs_to_one_study():
    assert set(MAPPED) == set(ABOUT)


@pytest.mark.parametrize(("table", "number"), ROWS)
def test_published_row_maps_to_one_group_of_points_or_has_a_reason(table, number):
    study, each = MAPPED[table]
    fields = dict(mapped_rows(each))[number]
    if isinstance(fields, str):
        assert REASONS[table] in fields
        return
    groups = {point.group for point in study.named(Options()) if agrees(fields, point.changes)}
    assert len(groups) == 1, fields


def test_rows_without_a_point_are_those_of_imagenet_and_of_checkpoints():
    found = {(each.table, each.row) for study, _ in MAPPED.values() for each in unmatched(study.published)}
    assert found == {("linear_attention", row) for row in (3, 5, 12, 14)} | {
        ("synthetic_imagenet", row) for row in range(1, 10)
    }


def headline(study: Study, name: str, options: Options | None = None) -> list[Any]:
    point = next(point for point in study.named(options or Options()) if point.group == name)
    return [reference.value for reference in study.references(point) if reference.quantity.is_headline]


@pytest.mark.parametrize(
    ("study", "changes", "values"),
    [
        (
            "hybrids",
            {"data.name": "cifar10", "model.layout": "performer_first", "model.performer": "favor(m=128)"},
            [74.29],
        ),
        ("hybrids", {"data.name": "mnist", "model.layout": "all_standard"}, [98.54]),
        ("hybrids", {"data.name": "mnist", "model.layout": "uniform"}, []),
        ("kernels", {"data.name": "cifar10", "model.preset": "conv-elu", "train.lr": 1e-4}, [76.29]),
        ("kernels", {"data.name": "cifar100", "model.preset": "conv-relu"}, [71.12]),
        ("kernels", {"data.name": "cifar10", "model.preset": "conv-exp-grid"}, []),
        ("linear-attention", {"data.name": "cifar10", "model.performer": "exp"}, [71.83]),
        ("positions", {"data.name": "mnist", "model.preset": "position-relu-string"}, [98.78]),
        ("vit-variants", {"data.name": "cifar10", "model.preset": "vit-128"}, [(75.0, 78.0)]),
    ],
)
def test_point_has_its_published_accuracy(study, changes, values):
    loaded = load_study(study)
    points = [point for point in loaded.named(Options()) if agrees(changes, point.changes)]
    found = {point.group: headline(loaded, point.group) for point in points}
    assert list(found.values()) == [values]


def test_point_shared_by_three_sweeps_has_three_references():
    fields = {
        "data.name": "cifar10",
        "model.depth": 6,
        "model.dim": 128,
        "train.lr": 1e-4,
        "model.preset": "performer-relu",
    }
    study = load_study("vit-variants")
    (point,) = [point for point in study.named(Options()) if agrees(fields, point.changes)]
    assert headline(study, point.group) == [65.0, 64.5, 64.0]


def test_relu_point_of_the_kernels_has_its_scores_per_class():
    study = load_study("kernels")
    points = [
        point
        for point in study.named(Options())
        if agrees({"data.name": "cifar10", "model.preset": "conv-relu"}, point.changes)
    ]
    found = {reference.quantity.name: reference.value for reference in study.references(points[0])}
    assert (found["recall, cat"], found["f1, mean over classes"], found["test accuracy"]) == (75.0, 87.0, 87.39)


def test_seeds_of_a_variant_share_its_references():
    study = load_study("hybrids")
    once, often = study.group_references(Options()), study.group_references(Options(seeds=(0, 1, 2)))
    assert {group: len(own) for group, own in once.items()} == {group: len(own) for group, own in often.items()}
    assert {point.group for point in study.named(Options(seeds=(0, 1)))} >= set(once)


def test_published_row_with_an_unknown_field_is_an_error():
    mine = Study(
        "mine",
        "?",
        {},
        product({"seed": [0]}),
        published=(Published("hybrids", lambda row: {"model.layot": row["layout"]}),),
    )
    with pytest.raises(FavoritError, match=r"unknown field of a run 'model\.layot'"):
        mine.group_references(Options())


# Ours next to the published numbers


def result(accuracy: float, seconds: float = 20.0, **environment: Any) -> dict[str, Any]:
    return {
        "test": {"accuracy": accuracy},
        "train_accuracy": 0.9,
        "train_seconds_per_epoch": seconds,
        "environment": environment,
    }


def hybrid_pairs(*results: dict[str, Any]) -> dict[str, Any]:
    references = load_study("hybrids").group_references(Options())
    found = pairs(
        references,
        {"data=cifar10 layout=all_standard": [(each, []) for each in results]},
        ["data=cifar10 layout=all_standard"],
    )
    return {pair.reference.quantity.name: pair for pair in found}


def test_ours_is_the_mean_over_runs_with_its_difference():
    found = hybrid_pairs(result(0.72), result(0.74))["test accuracy"]
    assert (found.ours, found.runs, found.ratio) == (pytest.approx(73.0), 2, None)
    assert found.difference == pytest.approx(73.0 - 72.96)


def test_times_use_only_runs_that_did_not_share_the_machine_and_have_a_ratio():
    runs = [
        result(0.7, 10.0, workers=1),
        result(0.7, 90.0, workers=2),
        result(0.7, 90.0, workers=1, nice=10),
        result(0.7, 14.0, nice=0),
    ]
    found = hybrid_pairs(*runs)["training time per epoch"]
    assert (found.ours, found.runs, found.difference) == (12.0, 2, None)
    assert found.ratio == pytest.approx(12.0 / 28.362)


def test_ours_is_none_without_runs():
    assert all(
        (pair.ours, pair.difference, pair.ratio, pair.runs) == (None, None, None, 0) for pair in hybrid_pairs().values()
    )


# Runs without a study


def configs(name: str) -> Iterator[Any]:
    study = load_study(name)
    references = study.group_references(Options())
    for point in study.named(Options()):
        own = [reference for reference in references.get(point.group, ()) if reference.quantity.is_headline]
        yield point, study.config(point, Options()), own


@pytest.mark.parametrize("name", sorted({study.name for study, _ in MAPPED.values()}))
def test_run_of_a_point_is_found_with_its_published_accuracies(name):
    for point, config, own in list(configs(name))[::5]:
        found = published_accuracy(config)
        assert (found.references, found.differs) == (tuple(own), ()), point.name


def test_shorter_run_with_another_seed_matches_the_point_and_lists_differences():
    (config,) = [
        config
        for point, config, _ in configs("hybrids")
        if point.name == "data=cifar10 layout=intertwined performer=relu(m=64)"
    ]
    spelled = config.model.replace(layout="relu(m=64)|softmax", image_size=32)
    found = published_accuracy(config.replace(model=spelled, train=config.train.replace(epochs=5), seed=7))
    assert [reference.value for reference in found.references] == [73.67]
    assert found.differs == ("train.epochs 5 instead of 50",)


def test_run_of_another_model_has_no_published_accuracy():
    (config,) = [config for point, config, _ in configs("hybrids") if point.name == "data=cifar10 layout=all_standard"]
    other = published_accuracy(config.replace(model=config.model.replace(dim=128)))
    assert (other.name, other.references) == ("", ())


def test_run_that_matches_several_points_gets_no_published_accuracy(monkeypatch: pytest.MonkeyPatch):
    (config,) = [config for point, config, _ in configs("hybrids") if point.name == "data=cifar10 layout=all_standard"]
    monkeypatch.setattr("favorit.study.lookup._digest", lambda config, recipe, resolved: "the same")
    found = published_accuracy(config)
    assert found.references == ()
    assert " and hybrids: data=cifar10 layout=all_standard" in found.name


def test_damaged_published_table_is_reported_and_does_not_stop_comparisons(monkeypatch: pytest.MonkeyPatch):
    def read(name: str) -> Any:
        raise FavoritError(f"published table {name}: rows 1 and 2 are both m=16: remove one")

    (config,) = [config for point, config, _ in configs("hybrids") if point.name == "data=cifar10 layout=all_standard"]
    monkeypatch.setattr("favorit.published.read", read)
    mapped_rows.cache_clear()
    found = published_accuracy(config)
    assert found.references == ()
    assert found.problem.endswith("rows 1 and 2 are both m=16: remove one")
