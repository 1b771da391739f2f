"""Inference with the weights of a run: predictions, features, and its test repeated."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from favorit import seeds
from favorit.config import RunConfig
from favorit.data import DataSet, as_dataset, build_preprocess, find_images, load_dataset, read_spec
from favorit.data.datasets import ARRAYS, path_of, with_values
from favorit.data.fit import FITS
from favorit.data.image_files import named
from favorit.errors import FavoritError
from favorit.files import damaged
from favorit.model import create_model
from favorit.model.outline import check_memory
from favorit.training import evaluation
from favorit.training.checkpoint import load_weights, selected_weights
from favorit.training.components import open_config, warn_if_changed
from favorit.training.diagnosis import diagnose
from favorit.training.evaluation import report
from favorit.training.find import open_run
from favorit.training.handle import Run
from favorit.training.identity import run_id
from favorit.training.loaders import build_test_loaders, subset_tested
from favorit.training.records import status
from favorit.training.saved import is_edited
from favorit.training.stored import StoredRun
from favorit.training.test_files import TestPart, existing_root, has_test_files, read_test_part
from favorit.training.trained_model import Prediction, TrainedModel

# Runs of favorit 0.1.0 have no field `fit`: their images were squeezed.
LEGACY_FIT = "resize"


def load(run: str | Path | Run) -> TrainedModel:
    """The model of a run with the weights that `train.select` chose, in evaluation mode.

    Imports the files of the user's own components if this user has imported them before.

    Example:
        model = favorit.load("runs/0123456789abcdef")
        model.predict("cat.png")
    """
    stored = open_run(run.path if isinstance(run, Run) else run)
    saved, result = open_config(stored), stored.result()
    config, card = RunConfig(**saved["config"]), saved["data"]
    if (fit := card.get("fit") or LEGACY_FIT) not in FITS:
        raise damaged(stored.path / "config.json", f"fit {fit!r} is not one of {', '.join(FITS)}")
    name = selected_weights(config)
    weights = stored.weights(name)
    check_memory(config.model)
    model = create_model(config.model, seed=seeds.derive(config.seed, "model")).eval()
    _warn_if_edited(stored, saved, config)
    warn_if_changed(saved, stored.path)
    recorded = result.get("weights", {}) if result is not None and result["status"] == "complete" else {}
    load_weights(model, weights, recorded.get(name))
    preprocess = build_preprocess(config.data.preprocess, card["mean"], card["std"])
    return TrainedModel(
        model,
        tuple(card["classes"]),
        preprocess,
        tuple(card["image_size"]),
        card["channels"],
        config.train.precision == "bf16",
        fit,
    )


def _warn_if_edited(run: StoredRun, saved: dict[str, Any], config: RunConfig) -> None:
    """Warns if config.json does not have the identifier or the sha256 that the run recorded."""
    expected, recorded = run_id(config, saved["data"]["digest"]), saved.get("id", run.id)
    if is_edited(saved) or expected != recorded:
        reason = f"identifier {expected}, not {recorded}" if expected != recorded else "its sha256 differs"
        warnings.warn(
            f"{run.path / 'config.json'} was edited after training started ({reason}): "
            "results and weights may belong to another configuration",
            stacklevel=3,
        )


def load_data(path: str | Path, data_dir: str | Path | None = None, data: Any = None) -> DataSet:
    """The data set that a run was trained on. `data` are the images of a run on arrays.

    Raises an error if its content has changed: another split could test on images that the run has trained on.
    """
    saved = open_config(open_run(path))
    card, options = saved["data"], RunConfig(**saved["config"]).data
    if data is not None:
        data = as_dataset(data)
    elif options.name == ARRAYS:
        raise FavoritError(
            f"{path} was trained on arrays of a Python script: pass them again from Python, as data=(images, labels); "
            "predictions need no data, and favorit.Run(...).result has the stored test"
        )
    else:
        legacy = "fit" not in card
        name = with_values(options.name, legacy=True) if legacy else read_spec(options)
        absolute = card.get("name") or name
        try:
            data = load_dataset(with_values(absolute, legacy=True) if legacy else absolute, data_dir)
        except FavoritError:  # images and working directory may have moved together: try the path as written
            data = load_dataset(name, data_dir)
    if data.digest != saved["data"]["digest"]:
        raise FavoritError(
            f"{options.name} is not the data set that {path} was trained on: its content has changed; restore it"
        )
    return data


class EvaluatedRun(dict[str, Any]):
    """The repeated test of a run: `test` (accuracy, loss, calibration and each class), times, size, flags, classes."""

    def __repr__(self) -> str:
        test = self["test"]
        flags = f", flags: {', '.join(self['flags'])}" if self["flags"] else ""
        return (
            f"<EvaluatedRun: accuracy {test['accuracy']:.2%}, loss {test['loss']:.4f}, "
            f"calibration error {test['calibration_error']:.4f}, {self['images_per_second']:,.0f} images/s{flags}; "
            f"keys: {', '.join(self)}>"
        )


def evaluate(
    run: str | Path | Run,
    data_dir: str | Path | None = None,
    *,
    data: Any = None,
    skip_unreadable: bool = False,
) -> EvaluatedRun:
    """Repeats the test of a complete run on its own test images: metrics, times, size, flags and classes.

    Of a folder, only the test images are read, so that other files may have changed. With `skip_unreadable`, test
    images that are missing, unreadable or changed are left out, listed in `skipped`, and the result is flagged.
    `data` are the images of a run on arrays, as given to `favorit.train`.

    Example:
        favorit.evaluate("runs/0123456789abcdef")["test"]["accuracy"]
    """
    stored = open_run(run.path if isinstance(run, Run) else run)
    path = stored.path
    saved, result = stored.config(), stored.result()
    state = status(stored, result)
    if result is None or state != "complete":
        reason = "only the weights that a complete run selected can be tested"
        raise FavoritError(f"{path} is {state}, not complete: {reason}; `favorit runs` lists all runs")
    trained, config = load(path), RunConfig(**saved["config"])
    part = _test_part(path, saved, data_dir, data)
    tested = set(subset_tested(config, part.data).tolist())
    changed = {index: file for index, file in part.changed.items() if index in tested}
    if changed and (not skip_unreadable or len(changed) == len(tested)):
        raise _changed(path, list(changed.values()), len(tested))
    loader, _ = build_test_loaders(config, part.data, changed)
    found = evaluation.evaluate(trained.model, loader, torch.device("cpu"), trained.precision)
    if wrong := int((~found.logits.isfinite().all(1)).sum()):
        where = diagnose(trained.model, next(loader.epoch(0)).images, trained.precision)
        raise FavoritError(
            f"{path}: the logits of {wrong} of {len(found.logits)} test images are not finite; {where}: train again"
        )
    image = torch.zeros(1, config.model.channels, *config.model.image_size)
    left_out = {"skipped": list(changed.values())} if changed else {}
    flags = [*result["flags"], *(["incomplete-test"] if changed else [])]
    return EvaluatedRun(classes=trained.classes, flags=flags, **left_out, **report(trained.model, found, image))


def _test_part(path: Path, saved: dict[str, Any], data_dir: str | Path | None, data: Any) -> TestPart:
    """The test images of a run."""
    if data is not None or not has_test_files(path):
        return TestPart(load_data(path, data_dir, data), {})
    card, own = saved["data"], RunConfig(**saved["config"]).data.name
    return read_test_part(path, card, existing_root(path_of(card.get("name") or own), path_of(own)))


def _changed(path: Path, files: list[str], total: int) -> FavoritError:
    """The error for test images that are missing, unreadable or changed."""
    count = len(files)
    what = f"{count} of {total} test images of {path} are missing, unreadable or changed: {named(files)}"
    others = f", or test the other {total - count} with --skip-unreadable" if count < total else ""
    return FavoritError(f"{what}: restore them{others}; the accuracy of the run is in its result.json")


def predict(run: str | Path | Run, images: Any, top: int = 5) -> list[Prediction]:
    """The `top` most probable classes of each image, by the model of a run: see `TrainedModel.predict`.

    Example:
        favorit.predict("runs/0123456789abcdef", ["cat.png", "dog.png"])
    """
    return load(run).predict(images, top)


def predict_files(run: str | Path | Run, images: Sequence[Path], top: int = 1) -> list[Prediction]:
    """As `predict`, but if no file can be read, the predictions hold the errors."""
    trained = load(run)
    return trained.classify(find_images(images), top)
