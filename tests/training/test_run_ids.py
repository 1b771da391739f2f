"""Run ids: pinned values, equal for equivalent configurations, different for all others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import favorit
from favorit import RunConfig
from favorit.training.identity import run_id
from training_helpers import LIVELY, fit, pictures, plain, resolved, tiny

# Changing one of these ids orphans every run with such a configuration. Do it only on purpose, and say so in
# CHANGELOG.md.
IDENTIFIERS: dict[str, tuple[dict[str, Any], str]] = {
    "default": (dict(), "c35fc88901479396"),
    "hybrid": (
        dict(model=dict(layout="performer_first", performer="relu(m=128)"), train=dict(epochs=5), seed=42),
        "593a770b275c4475",
    ),
    "pattern": (dict(model=dict(layout="relu(m=64)|softmax")), "e7e48a4ae40d55e4"),
    "augmented": (dict(data=dict(augment="crop(4)|flip|rotate(5)|cutout(8)|mixup(0.2)")), "3408b948868bc1c7"),
    "resized": (dict(data=dict(preprocess="resize(16)|normalise(0.5, 0.5)")), "2ee4bd29532eb59a"),
    "a fold": (dict(data=dict(folds=5, fold=2)), "03563a87f7e4e03f"),
    "a subset": (dict(data=dict(subset=400, validation=50)), "07a547af217070f5"),
    "sgd": (
        dict(train=dict(optimizer="sgd(momentum=0.8)", lr=0.1, weight_decay=5e-4, schedule="step(every=3)")),
        "798a2a8d55e05bd8",
    ),
    "muon": (dict(train=dict(optimizer="muon", schedule="one_cycle", warmup=1.5, clip=1.0)), "dc275505d559db2b"),
    "regularized": (dict(train=dict(label_smoothing=0.1, ema=0.99, class_weights=True)), "edb12ff43a303317"),
    "stopping": (dict(train=dict(monitor="loss", patience=3, select="last")), "e4fefbffb07d215b"),
    "kernels": (
        dict(model=dict(layout="elu(m=32, alpha=0.25, scale=sqrt)|exp(clamp=5.0)|learned(m=16, act=gelu)|mixture")),
        "e8ff27bdabf9f337",
    ),
    "redrawn": (dict(model=dict(layout="favor(m=32)"), train=dict(redraw=100)), "0a7cd424a95b737e"),
    "redrawn each epoch": (
        dict(model=dict(layout="favor(m=32)"), train=dict(redraw="epoch", precision="bf16")),
        "2c7e0d139e736742",
    ),
}


def identifier(**sections: Any) -> str:
    config, data = resolved(RunConfig(**sections))
    return run_id(config, data.digest)


@pytest.mark.parametrize(("sections", "expected"), IDENTIFIERS.values(), ids=IDENTIFIERS)
def test_run_id_is_pinned(sections, expected):
    assert identifier(**sections) == expected


def test_different_configurations_have_different_ids():
    assert len({identifier(**sections) for sections, _ in IDENTIFIERS.values()}) == len(IDENTIFIERS)
    assert identifier() != identifier(seed=1)


SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a named layout": (
        dict(model=dict(layout="all_performer", performer="relu(m=64)")),
        dict(model=dict(layout="relu(m=64)")),
    ),
    "an unused performer": (
        dict(model=dict(layout="all_standard", performer="relu(m=64)")),
        dict(model=dict(layout="softmax")),
    ),
    "halves": (
        dict(model=dict(layout="performer_first", performer="relu(m=64)", depth=6)),
        dict(model=dict(layout="relu(m=64)*3|softmax*3", depth=6)),
    ),
    "intertwined": (dict(model=dict(layout="intertwined", performer="elu")), dict(model=dict(layout="elu|softmax"))),
    "spaces": (dict(model=dict(layout=" relu( m = 64 )|softmax ")), dict(model=dict(layout="relu(m=64)|softmax"))),
    "both spellings of normalise": (
        dict(data=dict(preprocess="resize(16)|normalize(0.5, 0.5)")),
        dict(data=dict(preprocess="resize(16)|normalise(0.5, 0.5)")),
    ),
    "order of keys": (
        dict(model=dict(layout="favor(features=hyperbolic, m=32)")),
        dict(model=dict(layout="favor(m=32, features=hyperbolic)")),
    ),
    "positional parameters": (dict(model=dict(layout="favor(32)")), dict(model=dict(layout="favor(m=32)"))),
    "defaults of kernels": (
        dict(
            model=dict(
                layout="elu(m=8, bias=False, rows=regular, temperature=False, raw=False)|mixture(raw=False, eps=1e-3)"
            )
        ),
        dict(model=dict(layout="elu(m=8)|mixture")),
    ),
    "defaults of a mixer": (
        dict(model=dict(layout="relu(m=64, eps=1e-3, learned=False)")),
        dict(model=dict(layout="relu(m=64)")),
    ),
    "defaults of fields": (
        dict(
            model=dict(dim=64, depth=4, heads=4, stem="patch(4)"),
            data=dict(name="digits", validation=0.1),
            train=dict(epochs=10, lr=0.001),
            seed=0,
        ),
        dict(),
    ),
    "fields that the data set decides": (
        dict(model=dict(image_size=8, channels=1, classes=10)),
        dict(model=dict(image_size=99, classes=3)),
    ),
    "stems, heads and positions": (
        dict(
            model=dict(
                stem="patch(size=(4, 4), crop=False)",
                head="cls()",
                position="learned + rope2d(base=100.0)",
                local="dwconv(3)",
            )
        ),
        dict(model=dict(stem="patch", position="learned+rope2d", local="dwconv")),
    ),
    "no local operation": (dict(model=dict(local="none")), dict()),
    "the width of heads": (dict(model=dict(head_dim=16)), dict()),
    "optimizers and schedules": (
        dict(train=dict(optimizer="sgd(momentum=0.9)", schedule="step(5, 0.5)")),
        dict(train=dict(optimizer="sgd", schedule="step")),
    ),
    "augmentation": (
        dict(data=dict(augment="crop(padding=4) | flip", preprocess="none")),
        dict(data=dict(augment="crop(4)|flip")),
    ),
    "explicit class weights": (
        dict(train=dict(class_weights=[1] * 9 + [2])),
        dict(train=dict(class_weights=(1.0,) * 9 + (2.0,))),
    ),
    "classes of an augmentation": (
        dict(data=dict(augment="flip(classes=(5, 3))")),
        dict(data=dict(augment="flip(classes=[3, 5, 5])")),
    ),
    "defaults of switches": (dict(train=dict(class_weights=False, deterministic=False)), dict()),
    "numbers": (dict(train=dict(lr=1, weight_decay=0)), dict(train=dict(lr=1.0, weight_decay=0.0))),
    "data by another name": (
        dict(data=dict(name="synthetic(size=8, test=48, train=96)")),
        dict(data=dict(name="synthetic(8, 3, 10, 96, 48, seed=0)")),
    ),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_equivalent_configurations_have_the_same_id(one, other):
    assert identifier(**one) == identifier(**other)


@pytest.mark.parametrize(
    "sections",
    [
        dict(train=dict(class_weights=True)),
        dict(train=dict(class_weights=(1,) * 10)),
        dict(train=dict(class_weights=(1,) * 9 + (2,))),
        dict(train=dict(deterministic=True)),
        dict(data=dict(augment="flip")),
        dict(data=dict(augment="flip(classes=(3,))")),
    ],
    ids=str,
)
def test_every_option_value_changes_the_id(sections):
    others = [
        identifier(),
        identifier(train=dict(class_weights=(2,) + (1,) * 9)),
        identifier(data=dict(augment="flip(classes=(3, 5))")),
    ]
    assert identifier(**sections) not in others


def test_order_of_sections_and_fields_does_not_change_the_id():
    config = plain(**LIVELY)
    backwards = {
        section: dict(reversed(list(values.items()))) if isinstance(values, dict) else values
        for section, values in reversed(list(config.items()))
    }
    assert list(backwards) != list(config)
    assert identifier(**config) == identifier(**backwards)


def test_folder_and_device_do_not_change_the_id(tmp_path: Path):
    config = tiny(train=dict(epochs=1))
    one = favorit.train(config, out=tmp_path / "a", data_dir=tmp_path / "x")
    other = favorit.train(
        config, out=tmp_path / "b" / "c", accelerator="cpu", data_dir=tmp_path / "y", checkpoint_seconds=0
    )
    assert one.id == other.id


def test_dictionary_has_the_id_of_its_configuration(tmp_path: Path):
    values = plain(train=dict(epochs=1))
    assert favorit.train(values, out=tmp_path).id == fit(tmp_path, RunConfig(**values))[0].id


def test_saved_configuration_has_the_id_of_its_run(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(**{**LIVELY, "train": {**LIVELY["train"], "epochs": 1}}))
    again, events = fit(tmp_path, run.config)
    assert again == run
    assert events == []
    assert json.loads((run.path / "config.json").read_text())["id"] == run.id


def test_moved_images_keep_the_id(tmp_path: Path):
    first = pictures(tmp_path / "first", {"a": 10, "b": 10})
    second = tmp_path / "elsewhere" / "second"
    shutil.copytree(first, second)
    one, other = (identifier(data=dict(name=f"folder:{path}")) for path in (first, second))
    assert one == other
    (second / "a" / "000.png").write_bytes((second / "b" / "000.png").read_bytes())
    assert identifier(data=dict(name=f"folder:{second}")) != one
