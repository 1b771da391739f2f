"""Damaged weights and checkpoints: named when they are loaded, never used."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import favorit
from favorit import FavoritError
from favorit.bench.doctor.diagnosis import diagnose
from favorit.metrics import metrics
from favorit.training import Begin, engine
from favorit.training.folder import RunFolder
from favorit.training.inference import evaluate, predict_files
from training_helpers import LIVELY, Outcome, assert_bit_equal, files, fit, forget_digests, interrupt, raises_line, tiny

CONFIG = tiny(**LIVELY)  # three epochs of six steps
CHANGED = "its sha256 differs from the recorded one"


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> favorit.Run:
    return fit(tmp_path_factory.mktemp("complete"), CONFIG)[0]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that was interrupted at step 7, and the same run at step 8."""
    places = [tmp_path_factory.mktemp(f"stopped{step}") for step in (7, 8)]
    return tuple(interrupt(out, CONFIG, step) for step, out in zip((7, 8), places, strict=True))  # type: ignore[return-value]


@pytest.fixture
def finished(complete, tmp_path: Path) -> Path:
    """A copy of the complete run, which the test may damage."""
    return Path(shutil.copytree(complete.path, tmp_path / "runs" / complete.id))


@pytest.fixture
def folder(stopped, tmp_path: Path) -> Path:
    """A copy of the interrupted run with two checkpoints, as after a kill before the older one was deleted."""
    older, newer = stopped
    copy = Path(shutil.copytree(newer, tmp_path / "runs" / newer.name))
    shutil.copytree(older / "checkpoint-7", copy / "checkpoint-7")
    return copy


def flip_bit(path: Path) -> None:
    """Flips an exponent bit of the last value of a weights file."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x20
    path.write_bytes(content)


def test_result_has_the_digest_of_each_weights_file(complete):
    recorded = complete.result["weights"]
    assert recorded.keys() == {"best.safetensors", "best-ema.safetensors"}
    for name, digest in recorded.items():
        assert hashlib.sha256((complete.path / name).read_bytes()).hexdigest() == digest


def test_one_flipped_bit_of_weights_is_reported_by_everything_that_loads_them(finished):
    path = finished / "best-ema.safetensors"
    flip_bit(path)
    words = (path, CHANGED, f"restore it, or delete {finished} and train again")
    for load in (favorit.load, evaluate, diagnose, lambda run: predict_files(run, [finished])):
        raises_line(lambda load=load: load(finished), *words)


def test_weights_of_an_older_version_are_loaded_unverified(finished, complete):
    forget_digests(finished)
    flip_bit(finished / "best-ema.safetensors")
    assert favorit.load(finished).classes == favorit.load(complete).classes


def test_damaged_checkpoint_is_replaced_by_an_earlier_one(folder, complete):
    flip_bit(folder / "checkpoint-8" / "model.safetensors")
    message = f"checkpoint-8/model.safetensors is damaged .{CHANGED}.*resuming from an earlier checkpoint"
    with pytest.warns(UserWarning, match=message):
        run, events = fit(folder.parent, CONFIG)
    assert next(event for event in events if isinstance(event, Begin)).step == 7
    assert_bit_equal(Outcome.of(run), Outcome.of(complete))


@pytest.mark.parametrize("name", ["model.safetensors", "ema.safetensors", "state.pt", "sha256.json"])
def test_damaged_checkpoint_without_an_earlier_one_does_not_fail_the_run(folder, name, complete):
    shutil.rmtree(folder / "checkpoint-7")
    path = folder / "checkpoint-8" / name
    if name == "sha256.json":
        path.write_text("{")
    else:
        flip_bit(path)
    before = list(files(folder))
    raises_line(lambda: fit(folder.parent, CONFIG), path, "is damaged", "delete that folder to start this run again")
    assert dict(files(folder)).keys() == dict(before).keys()
    assert favorit.runs(folder.parent).status.tolist() == ["stopped"]
    shutil.rmtree(folder / "checkpoint-8")
    assert_bit_equal(Outcome.of(fit(folder.parent, CONFIG)[0]), Outcome.of(complete))


def test_checkpoint_of_an_older_version_resumes(folder, complete):
    """It has no digests, neither of its files nor of the selected weights."""
    shutil.rmtree(folder / "checkpoint-7")
    path = folder / "checkpoint-8" / "state.pt"
    saved = torch.load(path, weights_only=True)
    del saved["progress"]["weights"]
    torch.save(saved, path)
    forget_digests(folder)
    run, events = fit(folder.parent, CONFIG)
    assert events[0].step == 8
    assert_bit_equal(Outcome.of(run), Outcome.of(complete))


def test_weights_damaged_between_two_epochs_are_not_tested(tmp_path: Path):
    """The first epoch is best: its weights are read again at the end."""
    config = tiny(train=dict(epochs=2, lr=1e-9))
    out = tmp_path / "runs"
    path = interrupt(out, config) / "best.safetensors"
    flip_bit(path)
    raises_line(lambda: fit(out, config), path, CHANGED)
    assert favorit.runs(out).status.tolist() == ["stopped"]


def test_kill_between_checkpoint_and_weights_leaves_an_intact_run(tmp_path: Path, monkeypatch):
    """The checkpoint of an epoch is written before its best weights, which are then written from the checkpoint."""
    config = tiny(train=dict(epochs=2))
    write = RunFolder.write_weights
    monkeypatch.setattr(RunFolder, "write_weights", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "runs", config)
    (path,) = (tmp_path / "runs").iterdir()
    assert not (path / "best.safetensors").exists()
    monkeypatch.setattr(RunFolder, "write_weights", write)
    monkeypatch.setattr(
        engine.Training, "_is_over", lambda _: True
    )  # ends at once, as if the first epoch were the last
    run, _ = fit(tmp_path / "runs", config)
    assert favorit.load(run).classes


# Odd values of the progress in a checkpoint.

ODD: dict[str, tuple[dict[str, Any], str]] = {
    "text": (dict(step="x"), "step='x' is not valid: input should be a valid integer"),
    "null": (dict(step=None), "step=None is not valid"),
    "negative": (dict(step=-1), "step=-1 is not valid"),
    "huge": (dict(step=10**12), "step 1000000000000 after 1 epochs, but the run has 3 epochs of 6 steps"),
    "epochs": (dict(epochs=9), "step 8 after 9 epochs"),
    "nan": (dict(loss_sum=float("nan")), "loss_sum=nan is not valid: input should be a finite number"),
    "list": (dict(best=[1]), r"best=\[1\] is not valid"),
    "nothing seen": (dict(seen=0), "step 8 after 1 epochs"),
    "unknown": (dict(colour=1), "colour"),
    "digests": (dict(weights=[1]), "weights="),
}


@pytest.mark.parametrize(("changes", "reason"), ODD.values(), ids=ODD)
def test_odd_progress_is_named(folder, changes, reason):
    shutil.rmtree(folder / "checkpoint-7")
    path = folder / "checkpoint-8" / "state.pt"
    saved = torch.load(path, weights_only=True)
    torch.save({**saved, "progress": {**saved["progress"], **changes}}, path)
    forget_digests(folder)
    with pytest.raises(FavoritError, match=reason) as error:
        fit(folder.parent, CONFIG)
    assert "cannot resume from" in str(error.value)
    assert "\n" not in str(error.value)


# Weights that are NaN.


def test_nan_logits_are_one_clear_line(finished):
    """An older run has no digest that could reveal the damage."""
    forget_digests(finished)
    path = finished / "best-ema.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.startswith("blocks.1."))
    weights[name][...] = float("nan")
    save_file(weights, path)
    raises_line(
        lambda: evaluate(finished),
        f"{finished}: the logits of 48 of 48 test images are not finite",
        "non-finite weights in 1 of",
        name,
    )
    loaded = favorit.load(finished)
    images = torch.zeros(5, 3, 8, 8, dtype=torch.uint8)
    for use in (loaded.predict, loaded.features):
        raises_line(lambda use=use: use(images), "for 5 of 5 images are not finite", name)
    raises_line(lambda: diagnose(finished), "q, k or v of layer 2 are not finite")


def test_metrics_reject_logits_that_are_not_finite():
    logits = torch.zeros(4, 3)
    logits[1, 2] = float("nan")
    with pytest.raises(FavoritError, match="the logits of 1 of 4 images are not finite"):
        metrics(logits, torch.zeros(4, dtype=torch.long))


# Symbolic links.


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the user that a link points to."""
    target = tmp_path / "precious"
    target.mkdir()
    (target / "file").write_text("mine")
    return target


@pytest.mark.parametrize("name", ["checkpoint-7", "writing-9", "writing-12"])
def test_link_in_a_run_is_removed_without_its_target(folder, outside, complete, name):
    if (folder / name).exists():
        shutil.rmtree(folder / name)
    (folder / name).symlink_to(outside)
    run, _ = fit(folder.parent, CONFIG, checkpoint_seconds=0)
    assert_bit_equal(Outcome.of(run), Outcome.of(complete))
    assert (outside / "file").read_text() == "mine"


def test_checkpoint_behind_a_link_resumes_and_is_kept(folder, tmp_path: Path, complete):
    shutil.rmtree(folder / "checkpoint-7")
    moved = tmp_path / "moved"
    shutil.move(folder / "checkpoint-8", moved)
    (folder / "checkpoint-8").symlink_to(moved)
    run, events = fit(folder.parent, CONFIG)
    assert events[0].step == 8
    assert_bit_equal(Outcome.of(run), Outcome.of(complete))
    assert (moved / "state.pt").exists()
    assert not list(run.path.glob("checkpoint-*"))
