"""Processes killed at many places: rerunning resumes and ends with a bit-equal result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import favorit
from favorit import RunConfig
from favorit.training import Epoch, Step
from training_helpers import LIVELY, PATIENCE, Outcome, assert_bit_equal, finish, fit, plain, start, tiny, untimed

MUON: dict[str, Any] = dict(LIVELY, train={**LIVELY["train"], "optimizer": "muon"})

# Three epochs of six steps; the second is best. Place of the kill -> files that must be left in the folder.
PLACES: dict[str, set[str]] = {
    "step 1": {"config.json", "lock", "epochs.jsonl"},
    "step 4": {"checkpoint-3"},
    "step 6": {"checkpoint-5"},  # the epoch is trained but not validated
    "epoch 1": {"checkpoint-6", "best.safetensors", "best-ema.safetensors"},
    "step 9": {"checkpoint-8"},
    "epoch 3": {"checkpoint-18"},  # trained but not tested
    "weights 8": {"checkpoint-7", "writing-8"},
    "weights 12": {"checkpoint-11", "writing-12"},
    "old 7": {"checkpoint-7", "checkpoint-8"},
    "line 1": {"checkpoint-11"},
    "replace config.json 1": {"lock"},
    "replace best.safetensors 2": {"checkpoint-12"},
    "replace best-ema.safetensors 2": {"checkpoint-12"},
    "replace checkpoint-14 1": {"checkpoint-13", "writing-14"},
    "replace predictions.npz 1": {"checkpoint-18"},
    "replace result.json 1": {"checkpoint-18", "predictions.npz"},
}
TIDYING = "old 18"  # the result is written, and the last checkpoint is partly deleted
COMPLETE = {
    "config.json",
    "lock",
    "epochs.jsonl",
    "best.safetensors",
    "best-ema.safetensors",
    "predictions.npz",
    "result.json",
}
AGAIN = ["step 2"] * 12  # the same run, killed in the second step of each of 12 processes


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], Outcome]:
    """The outcome of an uninterrupted run."""
    kept: dict[str, Outcome] = {}

    def outcome(sections: dict[str, Any]) -> Outcome:
        key = json.dumps(sections)
        if key not in kept:
            kept[key] = Outcome.of(fit(tmp_path_factory.mktemp("reference"), tiny(**sections))[0])
        return kept[key]

    return outcome


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one killed run for each place."""
    out = tmp_path_factory.mktemp("killed")
    jobs = [dict(config=plain(**LIVELY), out=str(out / place), place=place) for place in (*PLACES, TIDYING)]
    jobs += [dict(config=plain(**LIVELY), out=str(out / "again"), place=place) for place in AGAIN]
    jobs += [dict(config=plain(**MUON), out=str(out / "muon"), place="step 9")]
    (out / "jobs.json").write_text(json.dumps(jobs))
    status, output, errors = finish(start(Path(__file__).with_name("killed.py"), out / "jobs.json"))
    assert (status, errors) == (0, "")
    ends = [json.loads(line) for line in output.splitlines()]
    # Each process of AGAIN dies in its second step, before the checkpoint of that step. So it gains one step.
    assert [end["ended"] for end in ends] == ["SIGKILL"] * len(jobs), ends
    return out


@pytest.mark.parametrize("place", PLACES)
def test_run_killed_at_any_place_resumes_bit_equal(killed: Path, reference, place):
    (folder,) = (killed / place).iterdir()
    left = {path.name for path in folder.iterdir()}
    assert PLACES[place] <= left, left
    assert "result.json" not in left
    run, _ = fit(killed / place, tiny(**LIVELY))
    assert run.path == folder
    assert_bit_equal(Outcome.of(run), reference(LIVELY))
    assert {path.name for path in folder.iterdir()} == COMPLETE


def test_run_killed_while_tidying_is_complete_and_tidied_by_a_rerun(killed: Path, reference):
    (folder,) = (killed / TIDYING).iterdir()
    left = {path.name for path in folder.iterdir()}
    assert left == COMPLETE | {"checkpoint-18"}
    run, events = fit(killed / TIDYING, tiny(**LIVELY))
    assert not events
    assert_bit_equal(Outcome.of(run), reference(LIVELY))
    assert {path.name for path in folder.iterdir()} == COMPLETE


def test_resume_trains_only_the_missing_steps(killed: Path, reference, tmp_path: Path):
    """A run killed in step 9 of 18 has steps 9 to 18 left."""
    import shutil

    shutil.copytree(killed / "muon", tmp_path / "muon")
    _, events = fit(tmp_path / "muon", tiny(**MUON))
    assert [event.epoch * 6 + event.step for event in events if isinstance(event, Step)] == list(range(9, 19))


def test_run_killed_many_times_resumes_bit_equal(killed: Path, reference):
    run, events = fit(killed / "again", tiny(**LIVELY))
    assert 0 < sum(isinstance(event, Step) for event in events) < 18
    assert_bit_equal(Outcome.of(run), reference(LIVELY))


def test_run_with_muon_resumes_bit_equal(killed: Path, reference):
    run, _ = fit(killed / "muon", tiny(**MUON))
    assert_bit_equal(Outcome.of(run), reference(MUON))
    assert Outcome.of(run).epochs != reference(LIVELY).epochs


@pytest.mark.parametrize("changes", [dict(), dict(select="last")])
def test_run_killed_after_early_stopping_only_tests(tmp_path: Path, changes):
    """The checkpoint of the last epoch exists but not the result, so only the test is left."""
    config = tiny(train=dict(epochs=10, lr=0.03, schedule="constant", patience=1, **changes))
    whole, _ = fit(tmp_path / "whole", config)
    last = len(whole.epochs)
    assert last < 10

    def listen(event: Any, _: RunConfig) -> None:
        if isinstance(event, Epoch) and event.epoch == last - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        favorit.train(config, out=tmp_path / "cut", listen=listen)
    run, events = fit(tmp_path / "cut", config)
    assert not any(isinstance(event, Step) for event in events)
    assert untimed(run) == untimed(whole)
    assert_bit_equal(Outcome.of(run), Outcome.of(whole))


def test_train_command_killed_by_another_process_resumes_bit_equal(tmp_path: Path):
    """`favorit train` gets SIGKILL from another process; then the same command runs again."""
    config = plain(**{**LIVELY, "train": {**LIVELY["train"], "epochs": 20}})
    (tmp_path / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    command = ["-m", "favorit", "train", "--config", tmp_path / "config.yaml", "--accelerator", "cpu", "--out"]
    process = start(*command, tmp_path / "runs")
    deadline = time.monotonic() + PATIENCE
    while not (found := list(tmp_path.glob("runs/*/epochs.jsonl"))) or found[0].read_text().count("\n") < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    assert finish(process)[0] == -9
    assert not list(tmp_path.glob("runs/*/result.json"))
    status, output, errors = finish(start(*command, tmp_path / "runs"))
    assert (status, errors) == (0, "")
    assert "epoch   1/20" not in output
    assert "epoch  20/20" in output
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert_bit_equal(Outcome.of(favorit.Run(folder)), Outcome.of(fit(tmp_path / "whole", RunConfig(**config))[0]))
