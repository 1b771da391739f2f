"""Processes that are really killed, at many places: the same call goes on and ends with the same numbers, bit for
bit.
"""

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

# Three epochs of six steps, the second best. What is left in the folder by a process that dies there.
PLACES: dict[str, set[str]] = {
    "step 1": {"config.json", "lock", "epochs.jsonl"},
    "step 4": {"checkpoint-3"},
    "step 6": {"checkpoint-5"},  # an epoch trained, not validated
    "epoch 1": {"checkpoint-6", "best.safetensors", "best-ema.safetensors"},
    "step 9": {"checkpoint-8"},
    "epoch 3": {"checkpoint-18"},  # all trained, nothing tested
    "weights 8": {"checkpoint-7", "writing-8"},
    "weights 12": {"checkpoint-11", "writing-12"},
    "old 7": {"checkpoint-7", "checkpoint-8"},
    "line 1": {"checkpoint-11"},
    "replace config.json 1": {"lock"},
    "replace best.safetensors 2": {"checkpoint-11"},
    "replace best-ema.safetensors 2": {"checkpoint-11"},
    "replace checkpoint-14 1": {"checkpoint-13", "writing-14"},
    "replace predictions.npz 1": {"checkpoint-18"},
    "replace result.json 1": {"checkpoint-18", "predictions.npz"},
}
TIDYING = "old 18"  # all done, the result written, the last checkpoint half removed
COMPLETE = {
    "config.json",
    "lock",
    "epochs.jsonl",
    "best.safetensors",
    "best-ema.safetensors",
    "predictions.npz",
    "result.json",
}
AGAIN = ["step 2"] * 12  # the same run, killed every two steps until it is through


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], Outcome]:
    """What a configuration ends with when nobody disturbs it."""
    kept: dict[str, Outcome] = {}

    def outcome(sections: dict[str, Any]) -> Outcome:
        key = json.dumps(sections)
        if key not in kept:
            kept[key] = Outcome.of(fit(tmp_path_factory.mktemp("reference"), tiny(**sections))[0])
        return kept[key]

    return outcome


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run for each place, its process killed there."""
    out = tmp_path_factory.mktemp("killed")
    jobs = [dict(config=plain(**LIVELY), out=str(out / place), place=place) for place in (*PLACES, TIDYING)]
    jobs += [dict(config=plain(**LIVELY), out=str(out / "again"), place=place) for place in AGAIN]
    jobs += [dict(config=plain(**MUON), out=str(out / "muon"), place="step 9")]
    (out / "jobs.json").write_text(json.dumps(jobs))
    status, said, errors = finish(start(Path(__file__).with_name("killed.py"), out / "jobs.json"))
    assert (status, errors) == (0, "")
    ends = [json.loads(line) for line in said.splitlines()]
    # Of two steps the second is lost but where it ends an epoch, so that a process of AGAIN adds one step and dies.
    assert [end["ended"] for end in ends] == ["SIGKILL"] * len(jobs), ends
    return out


@pytest.mark.parametrize("place", PLACES)
def test_killed_there_and_trained_on(killed: Path, reference, place):
    (folder,) = (killed / place).iterdir()
    left = {path.name for path in folder.iterdir()}
    assert PLACES[place] <= left, left
    assert "result.json" not in left
    run, _ = fit(killed / place, tiny(**LIVELY))
    assert run.path == folder
    assert_bit_equal(Outcome.of(run), reference(LIVELY))
    assert {path.name for path in folder.iterdir()} == COMPLETE


def test_killed_while_it_tidied_it_is_complete_and_tidied_when_asked_for_again(killed: Path, reference):
    (folder,) = (killed / TIDYING).iterdir()
    left = {path.name for path in folder.iterdir()}
    assert left == COMPLETE | {"checkpoint-18"}
    run, events = fit(killed / TIDYING, tiny(**LIVELY))
    assert not events
    assert_bit_equal(Outcome.of(run), reference(LIVELY))
    assert {path.name for path in folder.iterdir()} == COMPLETE


def test_only_what_is_missing_is_trained(killed: Path, reference, tmp_path: Path):
    """Of a run killed in step 9 of 18, steps 9 to 18 are left."""
    import shutil

    shutil.copytree(killed / "muon", tmp_path / "muon")
    _, events = fit(tmp_path / "muon", tiny(**MUON))
    assert [event.epoch * 6 + event.step for event in events if isinstance(event, Step)] == list(range(9, 19))


def test_killed_again_and_again(killed: Path, reference):
    run, events = fit(killed / "again", tiny(**LIVELY))
    assert 0 < sum(isinstance(event, Step) for event in events) < 18
    assert_bit_equal(Outcome.of(run), reference(LIVELY))


def test_muon_goes_on_too(killed: Path, reference):
    run, _ = fit(killed / "muon", tiny(**MUON))
    assert_bit_equal(Outcome.of(run), reference(MUON))
    assert Outcome.of(run).epochs != reference(LIVELY).epochs


@pytest.mark.parametrize("changes", [dict(), dict(select="last")])
def test_killed_where_patience_ran_out_it_does_not_go_on(tmp_path: Path, changes):
    """The checkpoint of the last epoch is there, the result is not: nothing but testing is left to do."""
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


def test_the_command_killed_from_outside_and_given_again(tmp_path: Path):
    """No trap inside: `favorit train` in a process, SIGKILL from another, and the same command again."""
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
    status, said, errors = finish(start(*command, tmp_path / "runs"))
    assert (status, errors) == (0, "")
    assert "epoch   1/20" not in said
    assert "epoch  20/20" in said
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert_bit_equal(Outcome.of(favorit.Run(folder)), Outcome.of(fit(tmp_path / "whole", RunConfig(**config))[0]))
