"""Studies on a Ray cluster: drivers that are interrupted and killed, a node that is removed, runs that diverge.

The cluster has two nodes on this machine. The cluster and every driver run in separate processes, so that this process
does not import Ray.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
import torch

from favorit import RunConfig
from favorit.training import Run
from favorit.training.identity import run_id
from training_helpers import LIVELY, PATIENCE, Outcome, assert_bit_equal, files, fit, resolved, tiny

HERE = Path(__file__).parent
EPOCHS, STEPS = 20, 6  # epochs of a long run, steps of an epoch
LONG = {**LIVELY, "train": {**LIVELY["train"], "epochs": EPOCHS}}
# Enough runs for the second node to get one, even if its first worker starts slowly.
RUNS = [f"long {seed}" for seed in range(4)]
CONFIGS: dict[str, RunConfig] = {
    **{name: tiny(**{**LONG, "seed": seed}) for seed, name in enumerate(RUNS)},
    "short": tiny(),
    "diverging": tiny(train=dict(optimizer="sgd", lr=1e18)),
    "different": tiny(seed=5),  # has another identifier on the driver
}

Events = list[dict[str, Any]]


def identifier(name: str) -> str:
    config, data = resolved(CONFIGS[name])
    return "0" * 16 if name == "different" else run_id(config, data.digest)


@dataclass(frozen=True)
class Place:
    """The folder and environment of a test's processes. `mark` in the environment identifies them."""

    folder: Path
    environment: dict[str, str]
    mark: str

    def processes(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                found += [int(path.parent.name)] if self.mark.encode() in path.read_bytes() else []
            except OSError:  # it has ended, or belongs to another user
                continue
        return found

    def listening(self) -> set[str]:
        """The addresses, in hexadecimal, on which these processes listen."""
        sockets = set()
        for process in self.processes():
            for path in Path(f"/proc/{process}/fd").glob("*"):
                try:
                    sockets.add(os.readlink(path))
                except OSError:
                    continue
        rows = [
            row.split() for table in ("tcp", "tcp6") for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        ]
        return {row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}

    @contextmanager
    def start(self, script: str, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, str(HERE / script), *map(str, arguments)]
        with subprocess.Popen(command, text=True, stdin=-1, stdout=-1, stderr=-1, env=self.environment) as process:
            try:
                yield process
            finally:
                process.kill()

    def drive(
        self, address: str, names: list[str], react: Callable[[dict[str, Any]], int | None] = lambda event: None
    ) -> Driven:
        """Runs these tasks in a driver process. `react` receives each event and may return a signal for the driver."""
        tasks = [dict(name=name, id=identifier(name), config=CONFIGS[name].model_dump(mode="json")) for name in names]
        study = self.folder / "study.json"
        study.write_text(
            json.dumps(dict(address=address, out=str(self.folder / "runs"), tasks=tasks, accelerator="cpu"))
        )
        events: Events = []
        with self.start("cluster_driver.py", study) as driver:
            assert driver.stdout is not None
            for line in driver.stdout:
                events.append(json.loads(line))
                if (number := react(events[-1])) is not None:
                    driver.send_signal(number)
            _, errors = driver.communicate(timeout=PATIENCE)
        return Driven(driver.returncode, events, errors)

    def run(self, name: str) -> Run:
        return Run(self.folder / "runs" / identifier(name))

    def temporary(self) -> list[str]:
        """Leftovers of runs in the temporary folder."""
        return [path.name for path in (self.folder / "temporary").glob("favorit-*")]


@dataclass(frozen=True)
class Driven:
    """The exit status, events and stderr of a driver process."""

    status: int
    events: Events
    errors: str

    def of(self, name: str, *kinds: str) -> Events:
        return [event for event in self.events if event["name"] == name and event["kind"] in kinds]


@contextmanager
def placed(folder: Path, **environment: str) -> Iterator[Place]:
    """Yields a place, then waits until its processes have ended, and kills them if they do not end."""
    (folder / "temporary").mkdir()
    mark = uuid4().hex
    own = {"FAVORIT_TEST": mark, "HOME": str(folder), "TMPDIR": str(folder / "temporary"), "OMP_NUM_THREADS": "1"}
    # Paths of sockets must be short.
    with TemporaryDirectory(dir="/tmp", prefix="ray", ignore_cleanup_errors=True) as sockets:
        place = Place(folder, {**os.environ, **own, "RAY_TMPDIR": sockets, **environment}, mark)
        try:
            yield place
            deadline = time.monotonic() + PATIENCE
            while left := place.processes():
                assert time.monotonic() < deadline, left
                time.sleep(0.1)
        finally:
            for process in place.processes():
                os.kill(process, signal.SIGKILL)


@dataclass(frozen=True)
class Scenario:
    """A study trained by three drivers, one after the other. The cluster loses a node while the first one trains.

    `moved` is the task that trained on that node.
    """

    place: Place
    moved: str
    killed: Driven
    left: list[str]
    completing: Driven
    again: Driven
    unchanged: bool


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    own = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": uuid4().hex * 2,
    }
    with placed(tmp_path_factory.mktemp("cluster"), **own) as place, place.start("cluster_nodes.py") as nodes:
        assert nodes.stdin is not None
        assert nodes.stdout is not None
        address = nodes.stdout.readline().strip()
        began: list[dict[str, Any]] = []
        removed: list[str] = []

        def react(event: dict[str, Any]) -> int | None:
            """Removes the second node after a task's epoch there; kills the driver after that task's next epoch."""
            if event["kind"] == "Began":
                began.append(event)
            if event["kind"] != "EpochDone":
                return None
            where = [each["where"] for each in began if each["name"] == event["name"]]
            if not removed and where == ["second"]:
                removed.append(event["name"])
                print("second", file=nodes.stdin, flush=True)
                assert nodes.stdout.readline() == "removed\n"
            return signal.SIGKILL if removed == [event["name"]] and len(where) == 2 else None

        killed = place.drive(address, RUNS, react)
        left = sorted(path.name for path in place.run(removed[0]).path.iterdir())
        place.environment["RAY_ADDRESS"] = address
        completing = place.drive("auto", [removed[0], "diverging", "different", "short"])
        before = dict(files(place.folder / "runs"))
        again = place.drive(address, [removed[0], "diverging", "short"])
        unchanged = dict(files(place.folder / "runs")) == before
        nodes.stdin.close()
        assert nodes.wait(PATIENCE) == 0
        yield Scenario(place, removed[0], killed, left, completing, again, unchanged)


def reference(out: Path, name: str) -> Outcome:
    """The outcome of a task in one process without interruption, with one thread like on the cluster."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return Outcome.of(fit(out, CONFIGS[name])[0])
    finally:
        torch.set_num_threads(before)


def test_task_of_a_removed_node_resumes_on_another_node_from_the_received_files(scenario: Scenario):
    events = scenario.killed.of(scenario.moved, "Began", "EpochDone")
    first, second = (number for number, event in enumerate(events) if event["kind"] == "Began")
    assert (first, events[first]["where"], events[first]["step"]) == (0, "second", 0)
    assert (events[second]["where"], events[second]["step"]) == ("first", STEPS * (second - 1))
    epochs = [event["record"]["epoch"] for event in events if event["kind"] == "EpochDone"]
    assert epochs == list(range(len(epochs))), "every epoch once"
    assert len(epochs) > second - 1 > 0


def test_next_driver_resumes_after_sigkill_of_the_driver(scenario: Scenario):
    assert scenario.killed.status == -signal.SIGKILL
    done = scenario.killed.events[-1]["record"]["epoch"] + 1
    assert {"config.json", "epochs.jsonl", "best.safetensors", "best-ema.safetensors"} <= set(scenario.left)
    # The driver may have received the next checkpoint before the signal.
    assert (
        max(int(name.removeprefix("checkpoint-")) for name in scenario.left if name.startswith("checkpoint-"))
        >= STEPS * done
    )
    assert "result.json" not in scenario.left
    (began,) = scenario.completing.of(scenario.moved, "Began")
    assert began["step"] >= STEPS * done


def test_results_are_bit_equal_to_those_of_one_process(scenario: Scenario, tmp_path: Path):
    for name in (scenario.moved, "short"):
        assert_bit_equal(Outcome.of(scenario.place.run(name)), reference(tmp_path, name))
        (ended,) = scenario.completing.of(name, "Ended")
        assert (ended["result"], ended["elsewhere"]) == (scenario.place.run(name).result, False)


def test_every_task_ends_once_and_failed_tasks_do_not_stop_others(scenario: Scenario):
    verdicts = {
        event["name"]: event["kind"] for event in scenario.completing.events if event["kind"] in ("Ended", "Unfinished")
    }
    assert verdicts == {scenario.moved: "Ended", "diverging": "Unfinished", "different": "Unfinished", "short": "Ended"}
    assert len([event for event in scenario.completing.events if event["kind"] in ("Ended", "Unfinished")]) == len(
        verdicts
    )
    assert (scenario.completing.status, scenario.completing.errors) == (0, "")


def test_diverging_run_is_reported_and_recorded(scenario: Scenario):
    (broke,) = scenario.completing.of("diverging", "Unfinished")
    assert broke["error"].startswith("on first: the loss became nan at epoch 1")
    assert len(scenario.completing.of("diverging", "Began")) == 1, "it is not retried"
    assert scenario.place.run("diverging").result["status"] == "failed"


def test_node_with_different_data_trains_nothing(scenario: Scenario):
    (broke,) = scenario.completing.of("different", "Unfinished")
    config, data = resolved(CONFIGS["different"])
    assert f"the run is {run_id(config, data.digest)} with favorit" in broke["error"]
    assert "put the same synthetic" in broke["error"]
    assert not scenario.completing.of("different", "Began", "EpochDone")
    assert not (scenario.place.run("different").path / "config.json").exists()


def test_finished_runs_are_not_trained_again(scenario: Scenario):
    assert [event["kind"] for event in scenario.again.events] == ["Ended", "Unfinished", "Ended"]
    assert all(event["elsewhere"] for event in scenario.again.events if event["kind"] == "Ended")
    assert scenario.unchanged
    assert (scenario.again.status, scenario.again.errors) == (0, "")


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_local_cluster_is_private_and_ends_with_its_driver(tmp_path: Path):
    """After an interrupt in the third epoch no process and no temporary folder is left, and the run can be resumed."""
    listening: list[set[str]] = []
    with placed(tmp_path) as place:

        def react(event: dict[str, Any]) -> int | None:
            if event["kind"] != "EpochDone" or event["record"]["epoch"] != 2:
                return None
            listening.append(place.listening())
            return signal.SIGINT

        driven = place.drive("local", RUNS[:1], react)
    assert (driven.status, driven.errors) == (130, "")
    assert listening[0]
    assert listening[0] <= LOOPBACK
    assert place.temporary() == []
    assert not (tmp_path / ".ray").exists(), "no secret on disk"
    run, events = fit(tmp_path / "runs", CONFIGS[RUNS[0]])
    assert events[0].step >= 3 * STEPS
    assert len(run.epochs) == EPOCHS


def test_components_of_a_study_file_are_registered_on_nodes_without_the_file(tmp_path: Path):
    with placed(tmp_path) as place:
        shutil.copytree(HERE / "own_components", tmp_path / "mine")
        with place.start("cluster_study.py", tmp_path / "mine" / "rising_study.py", tmp_path / "runs") as driver:
            output, errors = driver.communicate(timeout=PATIENCE)
    assert (driver.returncode, errors) == (0, "")
    found = json.loads(output)
    assert found["errors"] == {}
    assert {result["status"] for result in found["results"].values()} == {"complete"}
    assert len(found["results"]) == 4
    assert place.temporary() == []
