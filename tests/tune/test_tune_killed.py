"""Searches killed with SIGKILL lose no trial and train none twice; several processes share a study."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

import favorit
import tune_helpers
from favorit.tuning import worker
from favorit.tuning.events import TrialProgress, TrialStarted
from favorit.tuning.result import TuneResult
from training_helpers import finish, start
from tune_helpers import folders, outcome, search, started

# For a search of three trials of two epochs: place where the process dies -> (trial to resume, its epochs on disk).
PLACES: dict[str, tuple[int | None, int]] = {
    "waiting": (None, 0),
    "claimed": (0, 0),
    "started 1": (0, 0),
    "epoch 1": (0, 1),
    "epoch 2": (0, 2),
    "tell 1": (0, 2),
    "finished 1": (None, 0),
    "epoch 3": (1, 1),
    "tell 3": (2, 2),
    "finished 3": (None, 0),
}
SHARED = dict(fields={"train.lr": "choice(0.03, 0.025, 0.02, 0.015, 0.01, 0.005)"}, pruner="none")


def jobs(folder: Path, *each: dict[str, Any]) -> list[str]:
    """Runs jobs and returns how each ended: a signal or an exit status."""
    (folder / "jobs.json").write_text(json.dumps(each))
    status, output, errors = finish(start(Path(tune_helpers.__file__), folder / "jobs.json"))
    assert (status, errors) == (0, "")
    return output.split()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    return search(tmp_path_factory.mktemp("reference"))[0]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a search killed at each place, one killed at random times, and one that three processes share."""
    out = tmp_path_factory.mktemp("killed")
    at_places = [
        dict(out=str(out / place), place=place, options=dict(storage=None) if place == "epoch 3" else {})
        for place in PLACES
    ]
    generator = random.Random(0)
    at_random = [dict(out=str(out / "random"), lines=generator.randint(1, 12)) for _ in range(6)]
    always = [dict(out=str(out / "always"), place="started 1") for _ in range(worker.MAX_DEATHS + 1)]
    together = [dict(out=str(out / "together"), options=SHARED, concurrent=number < 2) for number in range(3)]
    ends = jobs(out, *at_places, *always, *together, *at_random)
    assert ends[: len(PLACES) + len(always)] == ["SIGKILL"] * (len(PLACES) + len(always))
    assert ends[len(PLACES) + len(always) :][:3] == ["0"] * 3
    assert "SIGKILL" in ends[-6:]
    return out


@pytest.mark.parametrize("place", PLACES)
def test_search_resumes_after_sigkill_at_any_place(killed: Path, reference, place):
    number, epochs = PLACES[place]
    storage = dict(storage=None) if place == "epoch 3" else {}
    result, events = search(killed / place, **storage)
    assert outcome(result) == outcome(reference), "equal to a search without a kill"
    assert [event.number for event in events if isinstance(event, TrialStarted) and event.resumed] == (
        [] if number is None else [number]
    )
    trained = [
        event
        for event in events
        if isinstance(event, TrialProgress) and event.number == number and event.accuracy is not None
    ]
    assert len(trained) == (0 if number is None else 2 - epochs), "epochs on disk are not trained again"
    assert folders(killed / place) == {trial.run for trial in reference.trials}
    for trial in result.trials:
        assert len(favorit.Run(killed / place / trial.run).epochs) == 2
    assert number is None or not list((killed / place / ".tune").glob("worker-*")), (
        "lock files of dead workers are removed"
    )
    if place != "epoch 3":
        assert [sorted(trial.intermediate_values) for trial in load_study(killed / place).trials] == [[1, 2]] * 3
    assert search(killed / place, **storage) == (result, [])


def load_study(out: Path) -> optuna.Study:
    backend = optuna.storages.journal.JournalFileBackend(str(out / "tune.log"))
    return optuna.load_study(study_name="tuning", storage=optuna.storages.JournalStorage(backend))


def test_search_resumes_after_several_sigkills_at_random_times(killed: Path, reference):
    result, _ = search(killed / "random")
    assert outcome(result) == outcome(reference)
    assert folders(killed / "random") == {trial.run for trial in reference.trials}


def test_three_processes_share_a_study(killed: Path):
    """Together they run each trial once, and a further search has nothing to do."""
    result, events = search(killed / "together", **SHARED)
    assert events == []
    assert [trial.state for trial in result.trials] == ["complete"] * 6
    assert len({trial.run for trial in result.trials}) == 6
    workers = {trial.user_attrs["worker"] for trial in load_study(killed / "together").trials}
    assert len(workers) > 1
    assert not list((killed / "together" / ".tune").glob("worker-*")), "workers remove their lock files"


def test_two_processes_create_a_study_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The second process creates the study between the first and the second read of the first process."""
    other: list[TuneResult] = []

    def interrupted(read: Any) -> Any:
        def read_then_search(*given: Any, **options: Any) -> Any:
            found = read(*given, **options)
            if not other:
                other.append(None)  # type: ignore[arg-type]
                other[0] = search(tmp_path, trials=1)[0]
            return found

        return read_then_search

    monkeypatch.setattr(optuna.Study, "get_trials", interrupted(optuna.Study.get_trials))
    monkeypatch.setattr(optuna.Study, "user_attrs", property(interrupted(optuna.Study.user_attrs.fget)))
    result, events = search(tmp_path)
    assert [trial.state for trial in other[0].trials] == ["complete"]
    assert started(events) == [1, 2]
    assert [trial.state for trial in result.trials] == ["complete"] * 3


def test_trial_that_kills_its_process_each_time_runs_last(killed: Path, reference):
    """Such a trial may need too much memory. If it ran first, it would stop the whole search."""
    result, events = search(killed / "always")
    assert [(event.number, event.resumed) for event in events if isinstance(event, TrialStarted)] == [
        (1, False),
        (2, False),
        (0, True),
    ]
    assert outcome(result) == outcome(reference), "the trial is tried again at the end"


# Trials of other machines


def claim_elsewhere(out: Path, beat: float) -> None:
    """Adds a running trial 1 whose worker has no lock in this folder."""
    search(out, trials=1)
    study = load_study(out)
    study.add_trial(
        optuna.create_trial(state=TrialState.RUNNING, user_attrs={"worker": "worker-elsewhere", "beat": beat})
    )


def test_trial_of_another_machine_with_a_recent_heartbeat_is_left_alone(tmp_path: Path):
    claim_elsewhere(tmp_path, time.time() - 60)
    result, events = search(tmp_path)
    assert started(events) == [2]
    assert [trial.state for trial in result.trials] == ["complete", "running", "complete"]
    assert (result.elsewhere, result.missing) == (1, 0)


def test_trial_of_another_machine_without_a_heartbeat_is_resumed(tmp_path: Path):
    claim_elsewhere(tmp_path, time.time() - 2 * worker.MAX_SILENCE)
    result, events = search(tmp_path)
    assert [(event.number, event.resumed) for event in events if isinstance(event, TrialStarted)] == [
        (1, True),
        (2, False),
    ]
    assert [trial.state for trial in result.trials] == ["complete"] * 3


def test_trial_waits_for_its_run_in_another_process(tmp_path: Path):
    """The trial does not fail and the run is not trained twice."""
    from threading import Event, Thread

    from favorit.training import Begin

    held, release = Event(), Event()

    def listen(event: Any, config: Any) -> None:
        if isinstance(event, Begin):
            held.set()
            assert release.wait(30)

    config = tune_helpers.easy(train=dict(lr=0.03))
    other = Thread(target=lambda: favorit.train(config, out=tmp_path, accelerator="cpu", listen=listen))
    other.start()
    assert held.wait(30)
    releasing = Thread(target=lambda: (time.sleep(1.5), release.set()))
    releasing.start()
    result, events = search(tmp_path, {"train.lr": "choice(0.03)"})
    other.join()
    releasing.join()
    assert [trial.state for trial in result.trials] == ["complete"]
    assert not [event for event in events if isinstance(event, TrialProgress)], "the other process trained it"
