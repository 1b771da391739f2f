"""Scales: named reductions of a study, which are part of the configuration and of the run id."""

from __future__ import annotations

from pathlib import Path

import pytest

from favorit import FavoritError
from favorit.study import Options, Points, Study, load_study, product
from favorit.study.load import built_in
from favorit.study.plan import make_plan
from favorit.study.study import PROTOCOLS, SCALES, Scale
from favorit.training.identity import check_choices

BASE = {"data.name": "synthetic(size=8, classes=3, train=96, test=48)", "train.epochs": 10, "train.warmup": 5}
POINTS = product({"model.layout": ["softmax", "uniform", "none"]})
SMALL = Scale({"train.epochs": 2, "data.subset": 48}, points=product({"model.layout": ["softmax", "uniform"]}))
STUDY = Study("mine", "?", BASE, POINTS, sound={"data.subset": 90}, scales={"small": SMALL})
REPORTS = sorted(set(built_in()) - {"quickstart"})


def test_scale_has_its_own_points_and_overrides_base_and_protocol():
    found = STUDY.configs(Options(scale="small", protocol="sound"))
    assert list(found) == ["layout=softmax", "layout=uniform"]
    assert {(config.train.epochs, config.data.subset, config.scale) for config in found.values()} == {(2, 48, "small")}
    assert {config.train.warmup for config in found.values()} == {1.0}, "in proportion to the epochs"


def test_published_scale_is_the_study_itself():
    found = STUDY.configs()
    assert found == STUDY.configs(Options(scale="published"))
    assert {config.scale for config in found.values()} == {None}


def test_scale_is_part_of_the_run_id():
    same = Study("mine", "?", BASE, POINTS, scales={"small": Scale(), "tiny": Scale()})
    ids = {
        scale: [task.id for task in make_plan(same, Options(scale=scale)).tasks]
        for scale in ("published", "small", "tiny")
    }
    assert len({identifier for own in ids.values() for identifier in own}) == 9


def test_every_study_has_a_smoke_scale():
    (config, *_) = STUDY.configs(Options(scale="smoke")).values()
    assert (config.train.epochs, config.data.subset, config.data.test_subset, config.scale) == (1, 256, 256, "smoke")


def test_unknown_scale_error_lists_the_known_scales():
    with pytest.raises(
        FavoritError, match="unknown scale of study mine 'smal': did you mean 'small'\\? known: published, small, smoke"
    ):
        STUDY.named(Options(scale="smal"))
    with pytest.raises(FavoritError, match="unknown scale of study quickstart 'small'"):
        load_study("quickstart").named(Options(scale="small"))


def test_scale_with_an_unknown_field_is_rejected_at_construction():
    with pytest.raises(FavoritError, match=r"unknown field of a run 'train.epoch'"):
        Study("mine", "?", BASE, POINTS, scales={"small": Scale({"train.epoch": 1})})
    with pytest.raises(FavoritError, match="points 1 and 2 are the same"):
        Study("mine", "?", BASE, POINTS, scales={"small": Scale(points=Points({"seed": 1}, {"seed": 1}))})


def test_shown_scale_includes_the_changes_of_options():
    assert Options().shown_scale == "published"
    assert Options(scale="small", epochs=3, subset=64).shown_scale == "small, 3 epochs, 64 images"


def test_points_that_match_any_pattern_are_kept():
    assert [point.name for point in STUDY.named(Options(only=("soft", "*none")))] == ["layout=softmax", "layout=none"]
    with pytest.raises(FavoritError, match="no point matches 'gelu'"):
        STUDY.named(Options(only=("soft", "gelu")))


def test_pattern_matches_all_seeds_of_a_variant():
    found = STUDY.named(Options(only="layout=*x", seeds=(0, 1)))
    assert [point.name for point in found] == ["layout=softmax seed=0", "layout=softmax seed=1"]
    assert [point.name for point in STUDY.named(Options(only="*=softmax seed=1", seeds=(0, 1)))] == [
        "layout=softmax seed=1"
    ]


@pytest.mark.parametrize("name", built_in())
def test_no_scale_and_no_number_of_epochs_gives_a_study_that_training_rejects(name: str):
    """Warm-up is scaled with the epochs, and no point has both folds and a validation part."""
    study = load_study(name)
    for scale in {**SCALES, **study.scales}:
        for protocol in PROTOCOLS:
            for epochs in (None, 1, 7):
                for config in study.configs(Options(scale=scale, protocol=protocol, epochs=epochs)).values():
                    check_choices(config)


@pytest.mark.parametrize("name", REPORTS)
def test_small_scale_of_each_report_has_baseline_and_controls(name: str):
    study = load_study(name)
    layouts = {config.model.layout for config in study.configs(Options(scale="small")).values()}
    assert {"uniform", "none"} <= layouts
    assert any(layout in ("all_standard", "softmax") for layout in layouts)


@pytest.mark.parametrize("name", REPORTS)
def test_every_preset_of_a_scale_is_in_the_published_study(name: str):
    study = load_study(name)
    whole = {point.changes.get("model.preset") for point in study.named(Options())}
    for scale in ("small", "smoke"):
        assert {point.changes.get("model.preset") for point in study.named(Options(scale=scale))} <= whole


def test_scale_is_shown_in_the_tables_of_a_study(tmp_path: Path):
    from training_helpers import finish, start

    path = tmp_path / "mine.py"
    path.write_text(
        "from favorit.study import Scale, Study, product\n"
        f"STUDY = Study('mine', '?', {BASE!r}, product(seed=[0, 1]),\n"
        "    scales={'small': Scale({'train.epochs': 1})})\n"
    )
    shared = [str(path), "--scale", "small", "--out", str(tmp_path / "runs")]
    code, output, errors = finish(start("-m", "favorit", "study", "run", *shared))
    assert (code, errors) == (0, "")
    assert "mine: scale small; protocol published" in output
    for verb in (["status"], ["plan", "--no-estimate"]):
        code, output, errors = finish(start("-m", "favorit", "study", *verb, *shared, "--seeds", "0,1"))
        assert (code, errors) == (0, "")
        assert output.splitlines()[0] == "mine: scale small; seeds 0, 1; protocol published"


def test_published_numbers_are_not_shown_for_another_model():
    """At `small` the backbone of the kernels is narrower, so the published accuracy belongs to another model."""
    kernels = load_study("kernels")
    small = Options(scale="small")
    assert "dim 256 instead of 960" in kernels.other_models(small)["preset=conv-relu"]
    assert "preset=conv-relu" not in kernels.group_references(small)
    hybrids = load_study("hybrids")
    assert hybrids.other_models(small) == {}
    assert len(hybrids.group_references(small)) == 30 - 5, "m = 8 and the controls have no published row"
