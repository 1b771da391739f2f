"""Runners and workers are killed at random: no run is lost, trained twice or left incomplete."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import favorit
from favorit.study import load_study, status
from favorit.study.plan import make_plan
from favorit.study.study import Options
from favorit.training.folder import RunFolder
from training_helpers import PATIENCE, Outcome, assert_bit_equal

FILE = """
from favorit.study import Study, product
STUDY = Study(
    "tiny",
    "Is anything lost?",
    {BASE!r},
    product({POINTS!r}),
)
"""
BASE: dict[str, Any] = {
    "data.name": "synthetic(size=8, classes=3, train=96, test=48)",
    "data.augment": "crop(1)|flip",
    "data.validation": 0.25,
    "model.stem": "patch(4)",
    "model.dim": 8,
    "model.heads": 2,
    "model.depth": 2,
    "model.mlp_dim": 16,
    "model.dropout": 0.1,
    "train.batch_size": 13,
    "train.lr": 0.01,
    "train.ema": 0.9,
}


def write_study(folder: Path, points: dict[str, list[Any]], **changes: Any) -> Path:
    path = folder / "tiny.py"
    path.write_text(FILE.replace("{BASE!r}", repr({**BASE, **changes})).replace("{POINTS!r}", repr(points)))
    return path


class Server:
    """The process that forks runners."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("study_processes.py"))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def ask(self, **job: Any) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(
            json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in job.items()}),
            file=self.process.stdin,
        )
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def complete(self, **job: Any) -> int:
        return self.ask(do="wait", process=self.ask(**job))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    with server.process:  # it ends when its stdin is closed
        yield server
    assert server.process.returncode == 0


def events_of(out: Path) -> list[dict[str, Any]]:
    path = Path(f"{out}.log")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def children(process: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.005)
    return found


def results(out: Path) -> dict[str, tuple[int, int, bytes]]:
    """Inode, modification time and content of each result file: these must not change."""
    return {
        path.parent.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in out.glob("*/result.json")
    }


def ids(path: Path) -> set[str]:
    return {task.id for task in make_plan(load_study(path), Options()).tasks}


def test_results_after_twenty_random_kills_are_bit_equal(server: Server, tmp_path: Path):
    """Kills the runner or a worker at random moments, and reruns the study until it is complete.

    The results are bit-equal to those without kills. If the study completes before the last kill, points are added.
    """
    out, chance, seeds = tmp_path / "runs", random.Random(5), 5
    points: dict[str, list[Any]] = {"model.layout": ["favor(m=8)", "softmax"]}
    path = write_study(tmp_path, {**points, "seed": list(range(seeds))}, **{"train.epochs": 2})
    kept: dict[str, tuple[int, int, bytes]] = {}
    killed: Counter[str] = Counter()
    runner = None
    while killed.total() < 20:
        if runner is None:
            known = len(events_of(out))
            runner = server.ask(do="run", study=path, out=out, workers=2)
            until(lambda: len(events_of(out)) > known or not alive(runner))  # noqa: B023
        time.sleep(chance.uniform(0, 0.12))
        workers = children(runner)
        victim = chance.choice([runner, *workers])
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:  # a dead worker that the runner has just reaped
            continue
        if victim != runner:
            killed["worker"] += 1
        elif (end := server.ask(do="wait", process=runner)) == -signal.SIGKILL:
            killed["runner"] += 1
            until(lambda: not any(map(alive, workers)))  # noqa: B023
            runner = None
        else:
            assert end == 0
            runner, seeds = None, seeds + 2
            write_study(tmp_path, {**points, "seed": list(range(seeds))}, **{"train.epochs": 2})
        found = results(out)
        assert {key: found[key] for key in kept} == kept
        kept = found
    assert min(killed["runner"], killed["worker"]) >= 5, killed
    if runner is not None:
        assert server.ask(do="wait", process=runner) == 0
    assert server.complete(do="run", study=path, out=out, workers=2) == 0
    found = results(out)
    assert found.keys() == ids(path)
    assert {key: found[key] for key in kept} == kept
    assert {state.status for state in status(path, out)} == {"complete"}
    assert any(event.get("step") for event in events_of(out) if event["event"] == "Began"), (
        "some runs resumed from a checkpoint"
    )

    assert server.complete(do="train", study=path, out=tmp_path / "whole") == 0
    for identifier in found:
        assert_bit_equal(
            Outcome.of(favorit.Run(out / identifier)), Outcome.of(favorit.Run(tmp_path / "whole" / identifier))
        )
        left = {each.name for each in (out / identifier).iterdir()}
        assert left == {each.name for each in (tmp_path / "whole" / identifier).iterdir()}


def test_leftovers_of_a_kill_in_complete_runs_are_removed_on_rerun(server: Server, tmp_path: Path):
    """A worker may be killed after it wrote the result and before it cleaned up; that run is not trained again."""
    path, out = write_study(tmp_path, {"seed": [0, 1]}, **{"train.epochs": 1}), tmp_path / "runs"
    assert server.complete(do="run", study=path, out=out, workers=1) == 0
    kept, (free, held) = results(out), sorted(out / identifier for identifier in ids(path))
    tidy = {each.name for each in free.iterdir()}
    for folder in (free, held):
        (folder / "checkpoint-6").mkdir()
        (folder / "checkpoint-6" / "state.pt").write_bytes(b"half removed")
        (folder / ".best-ema.safetensors.5929").write_bytes(b"half")
    with RunFolder(held).lock():  # the files of a held run are not touched
        assert server.complete(do="run", study=path, out=out, workers=1) == 0
    assert {each.name for each in free.iterdir()} == tidy
    assert {each.name for each in held.iterdir()} == tidy | {"checkpoint-6", ".best-ema.safetensors.5929"}
    assert server.complete(do="run", study=path, out=out, workers=1) == 0
    assert {each.name for each in held.iterdir()} == tidy
    assert results(out) == kept


def test_two_runners_share_a_study(server: Server, tmp_path: Path):
    path, out = write_study(tmp_path, {"seed": list(range(12))}, **{"train.epochs": 2}), tmp_path / "runs"
    first, second = (server.ask(do="run", study=path, out=out, workers=workers) for workers in (1, 2))
    assert server.ask(do="wait", process=first) == 0
    assert server.ask(do="wait", process=second) == 0
    events = events_of(out)
    assert Counter(event["id"] for event in events if event["event"] == "Began") == dict.fromkeys(ids(path), 1)
    trained = Counter(event["runner"] for event in events if event["event"] == "Ended" and not event["elsewhere"])
    assert trained.total() == 12
    assert min(trained[first], trained[second]) > 0, "one runner trained nothing"


def test_second_runner_waits_for_a_held_run_and_resumes_it(server: Server, tmp_path: Path):
    """The second runner waits while the first one trains the run, and resumes the run after the first one is killed."""
    path, out = write_study(tmp_path, {"seed": [0]}, **{"train.epochs": 40}), tmp_path / "runs"
    first = server.ask(do="run", study=path, out=out, workers=1)
    until(lambda: any(event["event"] == "EpochDone" for event in events_of(out)))
    second = server.ask(do="run", study=path, out=out, workers=1)
    time.sleep(0.5)
    os.kill(first, signal.SIGKILL)
    assert server.ask(do="wait", process=first) == -signal.SIGKILL
    assert server.ask(do="wait", process=second) == 0
    began = [(event["runner"], event["step"]) for event in events_of(out) if event["event"] == "Began"]
    assert [runner for runner, _ in began] == [first, second]
    assert began[1][1] > 0


def test_interrupted_study_stops_promptly_and_resumes(server: Server, tmp_path: Path):
    path, out = write_study(tmp_path, {"seed": [0, 1]}, **{"train.epochs": 60}), tmp_path / "runs"
    runner = server.ask(do="run", study=path, out=out, workers=2)
    until(lambda: len({event["id"] for event in events_of(out) if event["event"] == "EpochDone"}) == 2)
    workers = children(runner)
    for process in (runner, *workers):  # as Ctrl-C on a terminal does
        os.kill(process, signal.SIGINT)
    assert server.ask(do="wait", process=runner) == 130
    assert len(workers) == 2
    assert not [event for event in events_of(out) if event["event"] == "killed"], "the workers ended without SIGKILL"
    assert not any(map(alive, workers))
    assert {state.status for state in status(path, out)} == {"stopped"}
    assert server.complete(do="run", study=path, out=out, workers=2) == 0
    assert {state.status for state in status(path, out)} == {"complete"}


def test_time_limit_stops_running_runs_and_starts_no_others(server: Server, tmp_path: Path):
    path, out = write_study(tmp_path, {"seed": [0, 1]}, **{"train.epochs": 4000}), tmp_path / "runs"
    seconds, trained = 1.5, False
    while not trained and seconds < PATIENCE:  # on a slow machine the first epoch takes longer
        before = len(events_of(out))
        assert server.complete(do="run", study=path, out=out, workers=1, hours=seconds / 3600) == 0
        seconds, trained = 2 * seconds, any(event["event"] == "EpochDone" for event in events_of(out))
    broke = [event for event in events_of(out)[before:] if event["event"] == "Unfinished"]
    assert [event["later"] for event in broke] == [True, True]
    assert not results(out)
    stopped, missing = sorted(status(path, out), key=lambda state: state.name)
    assert (stopped.status, missing.status) == ("stopped", "missing")
    assert 0 < (stopped.epochs or 0) < 4000
    assert stopped.error is None, "stopping is not an error"
    began = len(events_of(out))
    assert server.complete(do="run", study=path, out=out, workers=1, hours=0.5 / 3600) == 0
    again = next(event for event in events_of(out)[began:] if event["event"] == "Began")
    assert again["step"] > 0


def test_task_that_kills_its_worker_fails_and_the_others_continue(server: Server, tmp_path: Path):
    path, out = write_study(tmp_path, {"model.layout": ["uniform", "none", "softmax"]}), tmp_path / "runs"
    assert server.complete(do="run", study=path, out=out, workers=1, deadly="none") == 1
    (broke,) = (event for event in events_of(out) if event["event"] == "Unfinished")
    assert "its worker died 3 times without progress" in broke["error"]
    assert "signal 9" in broke["error"]
    states = {state.name: state for state in status(path, out)}
    assert {name: state.status for name, state in states.items()} == {
        "layout=uniform": "complete",
        "layout=none": "missing",
        "layout=softmax": "complete",
    }
    assert states["layout=none"].error == broke["error"]
    assert server.complete(do="run", study=path, out=out, workers=1) == 0
    assert [(state.status, state.error) for state in status(path, out)] == [("complete", None)] * 3


def test_error_other_than_divergence_is_recorded_and_retried_on_rerun(server: Server, tmp_path: Path):
    """A damaged checkpoint fails a run; a rerun without it completes the run."""
    path, out = write_study(tmp_path, {"seed": [0, 1]}), tmp_path / "runs"
    broken = out / min(ids(path)) / "checkpoint-3"
    broken.mkdir(parents=True)
    assert server.complete(do="run", study=path, out=out, workers=2) == 1
    (error,) = (event["error"] for event in events_of(out) if event["event"] == "Unfinished")
    assert "checkpoint-3" in error
    assert {state.status: state.error for state in status(path, out)} == {"complete": None, "stopped": error}
    assert favorit.runs(out).query("status == 'stopped'").error.tolist() == [error]
    broken.rmdir()
    assert server.complete(do="run", study=path, out=out, workers=2) == 0
    assert [(state.status, state.error) for state in status(path, out)] == [("complete", None)] * 2


def test_number_of_workers_is_recorded(server: Server, tmp_path: Path):
    path, out = write_study(tmp_path, {"seed": [0, 1, 2]}, **{"train.epochs": 1}), tmp_path / "runs"
    assert server.complete(do="run", study=path, out=out, workers=2) == 0
    assert {favorit.Run(out / identifier).result["environment"]["workers"] for identifier in ids(path)} == {2}
