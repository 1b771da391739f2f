"""Plans: every point is checked before training, with and without its data, and the identifiers are stored."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from favorit import FavoritError, create_model
from favorit.measure import peak_memory
from favorit.model import PRESETS, outline
from favorit.study import Options, Points, Study, load_study, product, run, status
from favorit.study.estimate import estimate, run_seconds
from favorit.study.load import built_in
from favorit.study.plan import Plan, index_path, make_plan, merge_notes, write_index
from favorit.study.timings import StepCost, Timings
from favorit.study.worker import release_memory
from favorit.training.folder import RunFolder
from training_helpers import DATA, MODEL, PATIENCE, TRAIN, fit, pictures, tiny

BASE: dict[str, Any] = {
    "data.name": DATA,
    **{f"model.{key}": value for key, value in MODEL.items()},
    **{f"train.{key}": value for key, value in TRAIN.items()},
}


@pytest.fixture(autouse=True)
def _no_data_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAVORIT_DATA", str(tmp_path / "data"))


def plan(points: Points, **changes: Any) -> Plan:
    return make_plan(Study("mine", "Why?", {**BASE, **changes}, points), Options())


@pytest.mark.parametrize("name", built_in())
def test_every_built_in_study_plans_without_its_data(name, tmp_path: Path):
    """Builds each model without weights and resolves each point. For points without data, the plan names the command
    that downloads the data.
    """
    study = load_study(name)
    found = make_plan(study, Options(protocol="sound" if study.sound else "published"))
    assert len(found.tasks) == len(study.points)
    absent = {task.config.data.name for task in found.tasks if task.name in found.absent}
    assert absent == {task.config.data.name for task in found.tasks} - {"digits"}
    for data in absent:
        assert f"{data} is not in {tmp_path / 'data'}: run 'favorit data fetch {data}'" in found.absent.values()
    assert {bool(task.id) for task in found.tasks} == {name == "quickstart"}
    assert all(found.images[data] == ((60_000, 10_000) if data == "mnist" else (50_000, 10_000)) for data in absent)


def test_tasks_have_the_configurations_and_ids_of_training(tmp_path: Path):
    found = plan(product({"model.layout": ["softmax", "uniform"]}))
    run, _ = fit(tmp_path, tiny(model=dict(layout="uniform")))
    assert [task.name for task in found.tasks] == ["layout=softmax", "layout=uniform"]
    assert found.tasks[1].id == run.id
    assert found.tasks[1].config == run.config
    assert found.images == {DATA: (96, 48)}


def test_planning_allocates_no_weights():
    """A model with 4 billion parameters is checked without allocating them."""
    release_memory()
    before = peak_memory()
    found = plan(product({"model.dim": [8, 8192], "model.mlp_dim": [32768]}))
    assert found.tasks[1].config.model.dim == 8192
    assert peak_memory() - before < 1 << 30


@pytest.mark.parametrize("layout", ["favor(m=8)", "relu(m=8)", "learned(m=8)|mixture", "softmax"])
def test_planned_model_has_the_shapes_of_the_trained_one(layout, monkeypatch: pytest.MonkeyPatch):
    """The planned model is built on the meta device."""
    built: list[nn.Module] = []

    def create(*arguments: Any, **options: Any) -> nn.Module:
        built.append(create_model(*arguments, **options))
        return built[-1]

    monkeypatch.setattr(outline, "create_model", create)
    config = plan(product({"model.layout": [layout]})).tasks[0].config.model
    (checked,) = built
    assert all(tensor.is_meta for tensor in checked.state_dict().values())
    expected = create_model(config, seed=0).state_dict()
    assert {name: tensor.shape for name, tensor in checked.state_dict().items()} == {
        name: value.shape for name, value in expected.items()
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.layout": "sofmax"}, "unknown layout or mixer 'sofmax': did you mean 'softmax'"),
        ({"model.layout": "relu(causal=True)"}, "causal"),
        ({"model.stem": "patch(3)"}, "patch"),
        ({"data.name": "minst"}, "unknown data set 'minst': did you mean 'mnist'"),
        ({"data.name": "folder:nowhere"}, "nowhere"),
        ({"data.subset": 97}, "subset=97"),
        ({"data.augment": "flop"}, "unknown augmentation 'flop': did you mean 'flip'"),
        ({"train.optimizer": "adan"}, "unknown optimizer 'adan': did you mean 'adam'"),
        ({"train.schedule": "cosinus"}, "unknown schedule 'cosinus': did you mean 'cosine'"),
        ({"train.batch_size": 500, "train.drop_last": True}, "batch_size=500"),
    ],
)
def test_configuration_that_training_rejects_is_rejected_with_the_name_of_its_point(changes, message):
    with pytest.raises(FavoritError) as error:
        plan(Points({}, changes))
    assert message in str(error.value)
    shown = ", ".join(f"{key.split('.')[-1]}" for key in changes if key != "data.name")
    assert str(error.value).startswith("study mine, point '")
    assert shown.split(", ")[0] in str(error.value)
    assert "\n" not in str(error.value)


LAYOUTS_AND_PERFORMERS = product(
    {"model.layout": ["all_standard", "all_performer"], "model.performer": ["relu", "relu(m=8)", "favor(m=8)"]}
)


def test_points_of_a_layout_without_a_performer_are_one_run():
    found = plan(LAYOUTS_AND_PERFORMERS)
    assert [(task.name, task.merged) for task in found.tasks] == [
        ("layout=all_standard performer=relu", MERGED),
        ("layout=all_performer performer=relu", ()),
        ("layout=all_performer performer=relu(m=8)", ()),
        ("layout=all_performer performer=favor(m=8)", ()),
    ]
    assert len({task.id for task in found.tasks}) == 4
    assert merge_notes(found.tasks) == [
        "layout=all_standard performer=relu is the same run as layout=all_standard performer=relu(m=8), "
        "layout=all_standard performer=favor(m=8): trained once"
    ]


MERGED = ("layout=all_standard performer=relu(m=8)", "layout=all_standard performer=favor(m=8)")


def test_merged_points_are_one_group_over_all_seeds():
    """Seed 1 is in both groups. Seeds 0 and 2 are in one of them, and are still repetitions of the same variant."""
    found = plan(
        Points(
            {"model.performer": "relu", "seed": 0},
            {"model.performer": "relu", "seed": 1},
            {"model.performer": "elu", "seed": 1},
            {"model.performer": "elu", "seed": 2},
        )
    )
    assert [task.name for task in found.tasks] == [
        "performer=relu seed=0",
        "performer=relu seed=1",
        "performer=elu seed=2",
    ]
    assert {(task.group, task.merged) for task in found.tasks} == {("performer=relu", ("performer=elu",))}
    assert len(merge_notes(found.tasks)) == 1


def test_points_of_a_missing_data_set_are_merged_by_data_set():
    """Without the data sets their runs have no identifier yet."""
    layouts = product({"data.name": ["cifar10", "mnist"], "model.layout": ["softmax", "all_standard"]})
    found = plan(layouts, **{"model.stem": "patch(4)"})
    assert [(task.name, task.id) for task in found.tasks] == [
        ("data=cifar10 layout=softmax", ""),
        ("data=mnist layout=softmax", ""),
    ]


def test_merged_points_are_in_the_index_and_the_status(tmp_path: Path):
    study = Study("mine", "?", BASE, LAYOUTS_AND_PERFORMERS)
    planned = status(study, tmp_path)
    assert [state.merged for state in planned] == [MERGED, (), (), ()]
    assert index_path(study, Options(), tmp_path).is_file()
    assert status(study, tmp_path) == planned


def test_run_warns_of_points_that_are_the_same_run(tmp_path: Path):
    study = Study("mine", "?", BASE, product({"model.layout": ["none", "none|none"]}))
    with pytest.warns(UserWarning, match=r"layout=none is the same run as layout=none\|none: trained once"):
        report = run(study, tmp_path)
    assert list(report.results) == ["layout=none"]


def test_points_of_available_data_sets_are_planned(tmp_path: Path):
    found = plan(product({"data.name": ["mnist", "digits"], "model.stem": ["patch(4)"]}))
    assert list(found.absent) == ["data=mnist"]
    assert [task.name for task in found.ready] == ["data=digits"]


# the index


def test_status_after_planning_needs_neither_torch_nor_data(tmp_path: Path):
    images = pictures(tmp_path / "images", {"black": 12, "white": 12})
    path = tmp_path / "mine.py"
    base = {**BASE, "data.name": f"folder('{images}', 8)", "data.validation": 0.25}
    points = "product({'model.layout': ['softmax', 'none']})"
    path.write_text(f"from favorit.study import Study, product\nSTUDY = Study('mine', '?', {base!r}, {points})\n")
    out = tmp_path / "runs"
    run, _ = fit(out, load_study(path).configs()["layout=none"])
    assert [(state.name, state.status) for state in status(path, out)] == [
        ("layout=softmax", "missing"),
        ("layout=none", "complete"),
    ]
    images.rename(tmp_path / "elsewhere")
    code = (
        "import sys, json\nfrom favorit.study import status\n"
        f"found = status({str(path)!r}, {str(out)!r})\n"
        "print(json.dumps([[s.id, s.status, s.accuracy] for s in found] + ['torch' in sys.modules]))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout
    *found, heavy = json.loads(output)
    assert found[1] == [run.id, "complete", run.result["test"]["accuracy"]]
    assert not heavy


def test_index_can_be_deleted_or_damaged(tmp_path: Path):
    study = Study("mine", "?", BASE, product(seed=[0, 1]))
    found = make_plan(study, Options())
    write_index(found, tmp_path)
    index = index_path(study, Options(), tmp_path)
    expected = status(study, tmp_path)
    for content in (
        "",
        "{",
        '{"schema": 1, "points": 3}',
        '{"schema": 1, "points": [[1]]}',
        '{"schema": 1, "points": [3]}',
    ):
        index.write_text(content) if content else index.unlink()
        assert status(study, tmp_path) == expected
        assert json.loads(index.read_text())["points"] == [[task.name, task.group, task.id, []] for task in found.tasks]


def test_index_depends_on_points_and_options(tmp_path: Path):
    study = Study("mine", "?", BASE, product(seed=[0, 1]))
    paths = {
        index_path(replace(study, points=points), options, tmp_path)
        for points in (product(seed=[0, 1]), product(seed=[0, 2]))
        for options in (
            Options(),
            Options(epochs=1),
            Options(subset=50),
            Options(scale="smoke"),
            Options(protocol="sound"),
            Options(only="2"),
        )
        if points[1]["seed"] == 2 or options.only is None
    }
    assert len(paths) == 11


def test_index_depends_on_the_fields_of_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = Study("mine", "?", {**BASE, "model.preset": "vit-64"}, product(seed=[0, 1]))
    before = index_path(study, Options(), tmp_path)
    monkeypatch.setitem(PRESETS, "vit-64", {"local": "dwconv(3)"})
    assert index_path(study, Options(), tmp_path) != before


def test_status_has_the_state_of_every_point(tmp_path: Path):
    study = Study("mine", "?", BASE, product({"train.lr": [0.01, 1e30, 0.02, 0.03, 0.04]}))
    configs = study.configs()
    complete, _ = fit(tmp_path, configs["lr=0.01"])
    with pytest.raises(FavoritError):
        fit(tmp_path, configs["lr=1e+30"])
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, configs["lr=0.02"], checkpoint_seconds=_Interrupt())
    held = RunFolder(tmp_path / next(task.id for task in make_plan(study, Options()).tasks if task.name == "lr=0.03"))
    with held.lock():
        held.write_config({"config": {}, "data": {}})
        states = {state.name: state for state in status(study, tmp_path)}
    assert {name: state.status for name, state in states.items()} == {
        "lr=0.01": "complete",
        "lr=1e+30": "failed",
        "lr=0.02": "stopped",
        "lr=0.03": "training",
        "lr=0.04": "missing",
    }
    assert states["lr=0.01"].accuracy == complete.result["test"]["accuracy"]
    assert "the loss became nan" in (states["lr=1e+30"].error or "")
    assert (states["lr=0.02"].epochs, states["lr=0.02"].error) == (0, None)


class _Interrupt(float):
    """A number of seconds that raises KeyboardInterrupt when it is compared."""

    def __le__(self, other: float) -> bool:
        raise KeyboardInterrupt


# the estimate


SHAPES = product({"model.dim": [8, 16], "train.lr": [0.01, 0.02], "train.epochs": [2, 4]})
SHAPE_NAMES = ["dim=8 lr=0.01 epochs=2", "dim=16 lr=0.01 epochs=2"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAVORIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "timings"


def estimate_shapes(threads: int = 1, again: bool = False) -> tuple[list[str], dict[str, float]]:
    """(the points whose shape is timed, the seconds of every point)."""
    found = plan(SHAPES)
    timed: list[str] = []
    timings = Timings(threads, again=again)
    seconds = estimate(found.tasks, found.images, timings, lambda task, done, total: timed.append(task.name))
    return timed, seconds


def test_each_shape_is_timed_once(cache: Path):
    threads = torch.get_num_threads()
    timed, seconds = estimate_shapes()
    assert torch.get_num_threads() == threads
    assert timed == SHAPE_NAMES
    assert list(seconds) == [task.name for task in plan(SHAPES).tasks]
    for dim in (8, 16):
        assert (
            0
            < seconds[f"dim={dim} lr=0.01 epochs=2"]
            == seconds[f"dim={dim} lr=0.02 epochs=2"]
            < seconds[f"dim={dim} lr=0.02 epochs=4"]
        )


def test_timings_are_remembered_for_the_machine_and_number_of_threads(cache: Path):
    _, seconds = estimate_shapes()
    assert estimate_shapes() == ([], seconds)
    assert estimate_shapes(threads=2)[0] == SHAPE_NAMES
    assert len(list(cache.iterdir())) == 2
    timed, measured_again = estimate_shapes(again=True)
    assert timed == SHAPE_NAMES
    assert estimate_shapes() == ([], measured_again)


def test_timings_of_other_versions_are_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch):
    estimate_shapes()
    monkeypatch.setattr(torch, "__version__", "3.0")
    assert estimate_shapes()[0] == SHAPE_NAMES


@pytest.mark.parametrize(
    "steps", ["{", "[]", '{"a": 3}', '{"a": [1]}', '{"a": [1, "x"]}', '{"a": [-1, 0]}', '{"a": [NaN, 0]}']
)
def test_damaged_timings_are_ignored_and_replaced(cache: Path, steps):
    estimate_shapes()
    (path,) = cache.iterdir()
    path.write_text(f'{{"schema": 1, "steps": {steps}}}')
    assert estimate_shapes()[0] == SHAPE_NAMES
    assert estimate_shapes()[0] == []


def test_folder_that_cannot_be_written_does_not_stop_the_estimate(cache: Path):
    cache.parent.write_text("a file where the folder should be")
    timed, seconds = estimate_shapes()
    assert timed == SHAPE_NAMES
    assert len(seconds) == 8


def test_timings_of_another_process_are_kept(cache: Path):
    tasks = plan(SHAPES).tasks
    first, second = Timings(1), Timings(1)
    first.add(tasks[0].config, StepCost(1.0, 2.0))
    second.add(tasks[-1].config, StepCost(3.0, 4.0))
    assert Timings(1)[tasks[0].config] == (1.0, 2.0)
    assert Timings(1)[tasks[-1].config] == (3.0, 4.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # 96 images, 10 of them for validation: 6 steps of at most 16 images at 1 s, plus 0.1 s per image. The forward
        # pass of an evaluated image costs a third of 0.1 s.
        ({"data.validation": 0.104}, 2 * (6 * 1.0 + 86 * 0.1 + 10 * 0.1 / 3) + 48 * 0.1 / 3),
        ({"data.validation": 32}, 2 * (4 * 1.0 + 64 * 0.1 + 32 * 0.1 / 3) + 48 * 0.1 / 3),
        ({"data.validation": 0, "train.select": "last", "train.epochs": 5}, 5 * (6 * 1.0 + 96 * 0.1) + 48 * 0.1 / 3),
        ({"data.folds": 3, "data.fold": 0}, 2 * (4 * 1.0 + 64 * 0.1 + 32 * 0.1 / 3) + 48 * 0.1 / 3),
        (
            {"data.subset": 48, "data.test_subset": 12, "data.folds": 3, "data.fold": 0},
            2 * (2 * 1.0 + 32 * 0.1 + 16 * 0.1 / 3) + 12 * 0.1 / 3,
        ),
    ],
)
def test_run_seconds_count_training_validation_and_test_images(changes, expected):
    (task,) = plan(product(), **changes).tasks
    assert run_seconds(task.config, 96, 48, StepCost(1.0, 0.1)) == pytest.approx(expected)
