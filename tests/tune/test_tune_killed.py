"""Processes that tune are really killed: no trial is lost, none is counted twice, none is trained twice; and several
share a study.
"""

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
from favorit.tuning.events import Began, Trained
from favorit.tuning.result import TuneResult
from training_helpers import finish, start
from tune_helpers import begun, folders, outcome, search

# Three trials of two epochs. The number of the trial that is taken up again, and how many of its epochs are there.
PLACES: dict[str, tuple[int | None, int]] = {
    "waiting": (None, 0),
    "asked": (0, 0),
    "begun 1": (0, 0),
    "epoch 1": (0, 1),
    "epoch 2": (0, 2),
    "tell 1": (0, 2),
    "told 1": (None, 0),
    "epoch 3": (1, 1),
    "tell 3": (2, 2),
    "told 3": (None, 0),
}
SHARED = dict(fields={"train.lr": "choice(0.03, 0.025, 0.02, 0.015, 0.01, 0.005)"}, pruner="none")


def jobs(folder: Path, *each: dict[str, Any]) -> list[str]:
    """Runs them, and says how each ended."""
    (folder / "jobs.json").write_text(json.dumps(each))
    status, said, errors = finish(start(Path(tune_helpers.__file__), folder / "jobs.json"))
    assert (status, errors) == (0, "")
    return said.split()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    return search(tmp_path_factory.mktemp("reference"))[0]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study for each place, its process killed there, and one that was killed many times, at random."""
    out = tmp_path_factory.mktemp("killed")
    at_places = [
        dict(out=str(out / place), place=place, options=dict(storage=None) if place == "epoch 3" else {})
        for place in PLACES
    ]
    generator = random.Random(0)
    at_random = [dict(out=str(out / "random"), lines=generator.randint(1, 12)) for _ in range(6)]
    always = [dict(out=str(out / "always"), place="begun 1") for _ in range(worker.DEADLY + 1)]
    together = [dict(out=str(out / "together"), options=SHARED, beside=number < 2) for number in range(3)]
    ends = jobs(out, *at_places, *always, *together, *at_random)
    assert ends[: len(PLACES) + len(always)] == ["SIGKILL"] * (len(PLACES) + len(always))
    assert ends[len(PLACES) + len(always) :][:3] == ["0"] * 3
    assert "SIGKILL" in ends[-6:]
    return out


@pytest.mark.parametrize("place", PLACES)
def test_killed_there_and_tuned_on(killed: Path, reference, place):
    number, epochs = PLACES[place]
    storage = dict(storage=None) if place == "epoch 3" else {}
    result, events = search(killed / place, **storage)
    assert outcome(result) == outcome(reference), "as if nobody had been killed"
    assert [event.number for event in events if isinstance(event, Began) and event.again] == (
        [] if number is None else [number]
    )
    again = [
        event
        for event in events
        if isinstance(event, Trained) and event.number == number and event.accuracy is not None
    ]
    assert len(again) == (0 if number is None else 2 - epochs), "what is on disk is not trained again"
    assert folders(killed / place) == {trial.run for trial in reference.trials}
    for trial in result.trials:
        assert len(favorit.Run(killed / place / trial.run).epochs) == 2
    assert number is None or not list((killed / place / ".tune").glob("worker-*")), "what the dead left is gone"
    if place != "epoch 3":
        assert [sorted(trial.intermediate_values) for trial in studied(killed / place).trials] == [[1, 2]] * 3
    assert search(killed / place, **storage) == (result, [])


def studied(out: Path) -> optuna.Study:
    backend = optuna.storages.journal.JournalFileBackend(str(out / "tune.log"))
    return optuna.load_study(study_name="tuning", storage=optuna.storages.JournalStorage(backend))


def test_killed_again_and_again(killed: Path, reference):
    result, _ = search(killed / "random")
    assert outcome(result) == outcome(reference)
    assert folders(killed / "random") == {trial.run for trial in reference.trials}


def test_three_commands_share_a_study(killed: Path):
    """Each trial once, as many as there should be, and nothing left to do."""
    result, events = search(killed / "together", **SHARED)
    assert events == []
    assert [trial.state for trial in result.trials] == ["complete"] * 6
    assert len({trial.run for trial in result.trials}) == 6
    workers = {trial.user_attrs["worker"] for trial in studied(killed / "together").trials}
    assert len(workers) > 1
    assert not list((killed / "together" / ".tune").glob("worker-*")), "they clean up"


def test_two_that_begin_a_study_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The other one begins it between the first look of this one and the second."""
    met: list[TuneResult] = []

    def meanwhile(look: Any) -> Any:
        def looking(*given: Any, **options: Any) -> Any:
            found = look(*given, **options)
            if not met:
                met.append(None)  # type: ignore[arg-type]
                met[0] = search(tmp_path, trials=1)[0]
            return found

        return looking

    monkeypatch.setattr(optuna.Study, "get_trials", meanwhile(optuna.Study.get_trials))
    monkeypatch.setattr(optuna.Study, "user_attrs", property(meanwhile(optuna.Study.user_attrs.fget)))
    result, events = search(tmp_path)
    assert [trial.state for trial in met[0].trials] == ["complete"]
    assert begun(events) == [1, 2]
    assert [trial.state for trial in result.trials] == ["complete"] * 3


def test_a_trial_that_takes_its_process_with_it_lets_the_others_go_first(killed: Path, reference):
    """It may need more memory than there is, and would stop them all."""
    result, events = search(killed / "always")
    assert [(event.number, event.again) for event in events if isinstance(event, Began)] == [
        (1, False),
        (2, False),
        (0, True),
    ]
    assert outcome(result) == outcome(reference), "but it is not given up"


# Trials of elsewhere


def claimed_elsewhere(out: Path, beat: float) -> None:
    """Trial 0 is taken up by a process whose lock is not in this folder."""
    search(out, trials=1)
    study = studied(out)
    study.add_trial(
        optuna.create_trial(state=TrialState.RUNNING, user_attrs={"worker": "worker-elsewhere", "beat": beat})
    )


def test_a_living_trial_of_another_machine_is_left_alone(tmp_path: Path):
    claimed_elsewhere(tmp_path, time.time() - 60)
    result, events = search(tmp_path)
    assert begun(events) == [2]
    assert [trial.state for trial in result.trials] == ["complete", "running", "complete"]
    assert (result.elsewhere, result.missing) == (1, 0)


def test_a_silent_trial_of_another_machine_is_taken_up(tmp_path: Path):
    claimed_elsewhere(tmp_path, time.time() - 2 * worker.SILENCE)
    result, events = search(tmp_path)
    assert [(event.number, event.again) for event in events if isinstance(event, Began)] == [(1, True), (2, False)]
    assert [trial.state for trial in result.trials] == ["complete"] * 3


def test_a_run_that_another_process_trains_is_waited_for(tmp_path: Path):
    """Not a failed trial, and not a second training of it."""
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
    assert not [event for event in events if isinstance(event, Trained)], "the other process did it"
