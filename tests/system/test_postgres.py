"""Tuning on a real PostgreSQL server, started here from the binaries of the Debian package (`install.sh` installs
it).
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

import favorit
import tune_helpers
from favorit import FavoritError
from training_helpers import finish, start
from tune_helpers import folders, outcome, search

PASSWORD = "p@ss:word"
FIELDS = {"train.lr": "choice(0.03, 0.025, 0.02, 0.015, 0.01, 0.005)"}
OPTIONS: dict[str, Any] = dict(fields=FIELDS, pruner="none")


def find(program: str) -> str:
    """The path of a server program, from PATH or from Debian's folder."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))
    found = shutil.which(program) or (str(debian[-1]) if debian else None)
    assert found, f"{program} is not installed: run tests/system/install.sh"
    return found


def as_server(*command: str) -> None:
    """Runs a server program. As root, runs it as the user postgres, because the server refuses to run as root."""
    other = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    done = subprocess.run([*other, *command], capture_output=True, text=True, cwd="/", timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of an empty database."""
    place = Path(tempfile.mkdtemp(prefix="favorit-postgres-"))
    if os.geteuid() == 0:
        account = pwd.getpwnam("postgres")
        os.chown(place, account.pw_uid, account.pw_gid)
    (place / "password").write_text(PASSWORD)
    (place / "password").chmod(0o644)
    data = str(place / "data")
    as_server(
        find("initdb"), "-D", data, "-U", "tuner", "-A", "scram-sha-256", f"--pwfile={place / 'password'}", "--no-sync"
    )
    with socket.socket() as free:  # as late as possible: another process may take the port
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = f"-p {port} -k {place} -c listen_addresses=127.0.0.1 -c fsync=off"
    as_server(find("pg_ctl"), "-D", data, "-w", "-l", str(place / "log"), "-o", settings, "start")
    try:
        yield f"postgresql://tuner:{PASSWORD}@127.0.0.1:{port}/postgres"
    finally:
        as_server(find("pg_ctl"), "-D", data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(place)


@pytest.fixture(scope="module")
def searched(server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of two searches. Two processes run the first in one shared folder. Two processes run the
    second in separate folders, and one of them is killed.
    """
    out = tmp_path_factory.mktemp("searched")
    shared, machines = ({**OPTIONS, "storage": server, "name": name} for name in ("shared", "machines"))
    jobs = [
        dict(out=str(out / "both"), options=shared, concurrent=True),
        dict(out=str(out / "both"), options=shared),
        dict(out=str(out / "one"), options=machines, place="epoch 3", concurrent=True),
        dict(out=str(out / "two"), options=machines),
    ]
    (out / "jobs.json").write_text(json.dumps(jobs))
    status, output, errors = finish(start(Path(tune_helpers.__file__), out / "jobs.json"))
    assert (status, errors) == (0, "")
    ends = output.split()
    assert (sorted(ends[:2]), sorted(ends[2:])) == (["0", "0"], ["0", "SIGKILL"])
    return out


def stored_trials(server: str, name: str) -> list[FrozenTrial]:
    storage = optuna.storages.RDBStorage(
        server.replace("postgresql", "postgresql+psycopg").replace(PASSWORD, "p%40ss%3Aword")
    )
    trials = optuna.load_study(study_name=name, storage=storage).get_trials()
    storage.remove_session()
    storage.engine.dispose()
    return trials


def test_two_processes_in_one_folder_train_every_trial_once(server: str, searched: Path):
    """Both processes create the database tables at the same time. A third process has nothing to train."""
    out = searched / "both"
    trials = stored_trials(server, "shared")
    assert [trial.number for trial in trials] == list(range(6))
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert {trial.params["train.lr"] for trial in trials} == {0.03, 0.025, 0.02, 0.015, 0.01, 0.005}
    assert len({trial.user_attrs["worker"] for trial in trials}) == 2, "each process trained some trials"
    assert {trial.user_attrs["run"] for trial in trials} == folders(out)
    for trial in trials:
        assert favorit.Run(out / trial.user_attrs["run"]).result["validation"]["accuracy"] == trial.value
    result, events = search(out, **OPTIONS, storage=server, name="shared")
    assert events == []
    alone, _ = search(searched / "alone", **OPTIONS)
    assert outcome(result) == outcome(alone)


def test_trial_of_a_killed_process_is_resumed_in_its_own_folder(server: str, searched: Path):
    """The two processes share only the database. The second one does not train the trial of the killed one, because it
    cannot know that the process is dead. The trial is resumed in the folder of the killed process.
    """
    one, two = searched / "one", searched / "two"
    left = [trial for trial in stored_trials(server, "machines") if trial.state == TrialState.RUNNING]
    assert [trial.user_attrs["run"] in folders(one) for trial in left] == [True]
    result, events = search(one, **OPTIONS, storage=server, name="machines")
    assert {event.number for event in events} == {left[0].number}
    # Two processes that request a trial at the same time may start one too many. It gets the result of its duplicate.
    assert [trial.state for trial in result.trials] in (["complete"] * 6, ["complete"] * 7)
    assert len({trial.run for trial in result.trials}) == 6
    assert folders(one) | folders(two) == {trial.run for trial in result.trials}


def test_wrong_password_is_a_one_line_error_without_the_password(server: str, tmp_path: Path):
    with pytest.raises(FavoritError, match=r"cannot be used: .*password authentication failed") as error:
        search(tmp_path, **OPTIONS, storage=server.replace(PASSWORD, "a:gu@ess"))
    assert "\n" not in str(error.value)
    assert "ess" not in str(error.value).replace("password", "").replace("address", "")
