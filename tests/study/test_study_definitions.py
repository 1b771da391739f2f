"""Studies: names of points, options, files, and the built-in studies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from favorit import FavoritError
from favorit.config import RunConfig
from favorit.model import PRESETS
from favorit.study import Options, Points, Study, load_study, product
from favorit.study.load import built_in
from training_helpers import PATIENCE

BASE = {"data.name": "digits", "train.epochs": 2}


def study(points: Points, base: dict[str, Any] | None = None, **more: Any) -> Study:
    return Study("mine", "Why?", BASE if base is None else base, points, **more)


def names(points: Points, base: dict[str, Any] | None = None, options: Options | None = None) -> list[str]:
    return [point.name for point in study(points, base).named(options or Options())]


# names


def test_names_show_differing_fields_with_short_keys():
    points = product({"data.name": ["mnist", "digits"], "model.layout": ["softmax", "relu(m=16)"]})
    assert names(points)[:2] == ["data=mnist layout=softmax", "data=mnist layout=relu(m=16)"]


def test_field_that_follows_from_another_is_not_shown():
    points = Points(
        {"data.name": "mnist", "data.augment": "rotate(5)"}, {"data.name": "digits", "data.augment": "flip"}
    )
    assert names(points * product(seed=[0, 1])) == [
        "data=mnist seed=0",
        "data=mnist seed=1",
        "data=digits seed=0",
        "data=digits seed=1",
    ]


def test_field_is_shown_only_for_points_that_set_it():
    points = product({"model.layout": ["all_performer"], "model.performer": ["relu", "elu"]}) + product(
        {"model.layout": ["softmax"]}
    )
    assert names(points) == [
        "layout=all_performer performer=relu",
        "layout=all_performer performer=elu",
        "layout=softmax",
    ]


def test_seeds_and_folds_come_last_even_if_they_distinguish_all_points():
    points = Points({"seed": 0, "model.dim": 32}, {"seed": 1, "model.dim": 64})
    assert names(points) == ["dim=32", "dim=64"]
    assert names(product({"data.fold": [0, 1], "model.dim": [32, 64]}), {"data.folds": 2})[:2] == [
        "dim=32 fold=0",
        "dim=64 fold=0",
    ]


def test_single_point_has_the_name_of_the_study():
    assert names(product()) == ["mine"]
    assert names(product() + product(seed=[3])) == ["mine", "seed=3"]


def test_repetitions_are_one_group():
    found = study(product({"model.layout": ["softmax", "uniform"]})).named(Options(seeds=(0, 1)))
    assert [(point.name, point.group) for point in found] == [
        ("layout=softmax seed=0", "layout=softmax"),
        ("layout=softmax seed=1", "layout=softmax"),
        ("layout=uniform seed=0", "layout=uniform"),
        ("layout=uniform seed=1", "layout=uniform"),
    ]


def test_seeds_option_replaces_the_seeds_of_the_points():
    points = product({"model.layout": ["softmax", "uniform"], "seed": [0, 1]})
    assert names(points, options=Options(seeds=(7,))) == ["layout=softmax", "layout=uniform"]
    assert names(points, {"seed": 3}, Options(seeds=(0, 7)))[1:3] == ["layout=softmax seed=7", "layout=uniform seed=0"]


# configurations


def test_points_override_base_and_fields_override_presets():
    mine = study(
        Points({"model.preset": "vit-64-mnist", "model.dim": 32}), {"model.dim": 16, "train.lr": 0.5, "seed": 7}
    )
    (config,) = mine.configs().values()
    expected = {**PRESETS["vit-64-mnist"], "dim": 32}
    assert config == RunConfig(model=expected, train={"lr": 0.5}, seed=7)


def test_options_change_every_point():
    mine = study(
        product({"train.lr": [0.1, 0.2]}), {"train.epochs": 10, "train.warmup": 5}, sound={"data.validation": 0.2}
    )
    found = mine.configs(Options(protocol="sound", epochs=2, subset=64, seeds=(3,)))
    assert {config.train.epochs for config in found.values()} == {2}
    assert {config.train.warmup for config in found.values()} == {1.0}, "shortened in proportion"
    assert {
        (config.data.subset, config.data.test_subset, config.data.validation, config.seed) for config in found.values()
    } == {(64, 64, 0.2, 3)}
    assert {config.data.validation for config in mine.configs().values()} == {0.1}


def test_only_is_part_of_a_name_or_a_pattern():
    points = product({"model.layout": ["softmax", "relu(m=16)", "relu(m=64)"]})
    assert names(points, options=Options(only="m=64")) == ["layout=relu(m=64)"]
    assert names(points, options=Options(only="*relu*")) == ["layout=relu(m=16)", "layout=relu(m=64)"]
    assert names(points, options=Options(only="layout=s*x")) == ["layout=softmax"]
    with pytest.raises(FavoritError, match="no point matches 'gelu'; a point is named like 'layout=softmax'"):
        names(points, options=Options(only="gelu"))


def test_names_do_not_depend_on_the_selection():
    points = product({"model.layout": ["softmax", "uniform"], "model.dim": [32, 64]})
    assert names(points, options=Options(only="uniform"))[0] == "layout=uniform dim=32"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: study(Points({"seed": 1}, {"seed": 1})), "study mine: points 1 and 2 are the same: seed=1"),
        (lambda: study(Points({"train.epochs": 2}, {})), "study mine: points 1 and 2 are the same"),
        (lambda: study(Points()), "study mine has no points"),
        (lambda: study([{}]), "points must be Points (from product, zipped or Points), not list"),
        (
            lambda: study(product(), {"model.layot": 1}),
            "unknown field of a run 'model.layot': did you mean 'model.layout'",
        ),
        (
            lambda: study(product(), sound={"train.selct": "best"}),
            "unknown field of a run 'train.selct': did you mean 'train.select'",
        ),
        (lambda: Study("a/b", "?", {}, product()), "study name 'a/b'"),
        (lambda: Options(protocol="sond"), "unknown protocol 'sond': did you mean 'sound'"),
        (
            lambda: study(product({"model.preset": ["vti-64"]})).configs(),
            "study mine, point 'mine': unknown preset 'vti-64': did you mean",
        ),
        (
            lambda: study(product({"model.dim": [8, -1], "model.heads": [2]})).configs(),
            "study mine, point 'dim=-1': model: dim=-1 is not valid: a value of at least 1",
        ),
    ],
)
def test_invalid_study_is_rejected_in_one_line(make, message):
    with pytest.raises(FavoritError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# files


def test_study_file_may_import_modules_of_its_folder(tmp_path: Path):
    (tmp_path / "values_of_mine.py").write_text("DIMS = [8, 16]\n")
    path = tmp_path / "mine.py"
    path.write_text(
        "from favorit.study import Study, product\nfrom values_of_mine import DIMS\n"
        "STUDY = Study('mine', 'How wide?', {}, product({'model.dim': DIMS}))\n"
    )
    before = list(sys.path)
    assert [point["model.dim"] for point in load_study(path).points] == [8, 16]
    assert sys.path == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\nx = (1,\n", "mine.py, line 2: SyntaxError: '(' was never closed"),
        ("\n\nimport no_such_module\n", "mine.py, line 3: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f():\n    return 1 / 0\n\nf()\n", "mine.py, line 2: ZeroDivisionError: division by zero"),
        (
            "from favorit.study import product\nproduct({'model.dm': [1]})\n",
            "mine.py, line 2: unknown field of a run 'model.dm'",
        ),
        ("raise SystemExit('no')\n", "mine.py, line 1: SystemExit: no"),
        ("STUDIES = 1\n", "mine.py must hold STUDY = Study(name, question, base, points)"),
        (None, "mine.py: no such file"),
    ],
)
def test_file_without_a_study_is_rejected_in_one_line(tmp_path: Path, text, message):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FavoritError) as error:
        load_study(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_name_is_an_error_with_the_nearest_match():
    with pytest.raises(
        FavoritError, match=r"unknown study .*'hybrid': did you mean 'hybrids'\? known: hybrids, kernels"
    ):
        load_study("hybrid")


# built-in studies

COUNTS = {"vit-variants": 34, "kernels": 161, "hybrids": 112, "linear-attention": 36, "positions": 30, "quickstart": 4}


def test_built_in_studies_have_their_names_and_numbers_of_points():
    assert {name: len(load_study(name).points) for name in built_in()} == COUNTS
    assert all(load_study(name).name == name for name in built_in())


@pytest.mark.parametrize("name", sorted(set(COUNTS) - {"quickstart"}))
def test_every_study_has_the_controls(name):
    layouts = {point.get("model.layout") for point in load_study(name).points}
    assert {"uniform", "none"} <= layouts


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("protocol", ["published", "sound"])
def test_every_study_yields_configurations(name, protocol):
    found = load_study(name).configs(Options(protocol=protocol))
    assert len(found) == COUNTS[name]
    if protocol == "sound":
        assert not any(config.data.augment_test for config in found.values())
        assert all(config.train.select == "best" for config in found.values())


def test_sweeps_share_one_run():
    shared = [
        point
        for point in load_study("vit-variants").points
        if (point.get("model.depth"), point.get("model.dim"), point.get("train.lr"), point["data.name"])
        == (6, 128, 1e-4, "cifar10")
    ]
    assert len(shared) == 1


def test_hybrids_are_the_published_grid():
    found = load_study("hybrids").configs().values()
    grid = {(config.data.name, config.model.layout, config.model.performer): config for config in found}
    for data, features in (("mnist", (16, 32, 64, 128, 256)), ("cifar10", (16, 32, 64, 128, 256, 512))):
        for layout in ("all_performer", "intertwined", "performer_first", "standard_first"):
            for kernel in ("relu", "favor"):
                assert all((data, layout, f"{kernel}(m={m})") in grid for m in features)
    one = grid["cifar10", "intertwined", "relu(m=64)"]
    assert (one.train.epochs, one.train.batch_size, one.train.lr, one.train.weight_decay, one.seed) == (
        50,
        128,
        1e-3,
        1e-4,
        42,
    )
    assert (one.data.augment, one.data.augment_test, one.train.select) == ("flip|rotate(5)", True, "last")


def test_flags_match_existing_points():
    kernels = load_study("kernels")
    named = [point.name for point in kernels.named(Options())]
    tuned = [name for name in named if any("tuned on the test set" in flag for flag in kernels.flagged(name))]
    assert {name.split("preset=")[1].split()[0] for name in tuned} == {"kernel-vit", "conv-exp", "conv-exp-grid"}
    for name in COUNTS:
        study = load_study(name)
        flagged = [sentence for point in study.named(Options()) for sentence in study.flagged(point.name)]
        assert set(flagged) == set(study.flags), "every flag matches a point"


def test_studies_are_read_without_torch():
    code = (
        "import sys\nfrom favorit.study import load_study, Options\nfrom favorit.study.load import built_in\n"
        "for name in built_in(): load_study(name).named(Options())\n"
        "print([name for name in ('torch', 'pandas', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == "[]"
